package runtime

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// HasFiles reports whether a session below a materialization root still has its
// directory: it runs, or its transcript was not cleaned up. What cannot be looked
// at counts as there.
func HasFiles(root, id string) bool {
	_, err := os.Lstat(filepath.Join(root, dirName(id)))
	return !errors.Is(err, fs.ErrNotExist)
}
