package transport

import (
	"fmt"
	"os"
	"path/filepath"
)

// maxSocketPath is what fits sockaddr_un.sun_path (108 bytes) with its NUL.
const maxSocketPath = 107

// socketPath returns a path to name in dir for bind and connect. It goes through
// the open directory: that is short whatever the directory's own path is, and it
// is the directory that was checked. Without /proc the path must fit.
func socketPath(dir *os.File, dirPath, name string) (string, error) {
	via := fmt.Sprintf("/proc/self/fd/%d", dir.Fd())
	if _, err := os.Readlink(via); err == nil {
		return via + "/" + name, nil
	}
	path := filepath.Join(dirPath, name)
	if len(path) > maxSocketPath {
		return "", &Error{Code: CodePathTooLong, Path: path}
	}
	return path, nil
}
