//go:build !linux

package transport

import (
	"os"
	"path/filepath"
)

// maxSocketPath is what fits sockaddr_un.sun_path (104 bytes on BSD) with its
// NUL.
const maxSocketPath = 103

// socketPath returns a path to name in dir for bind and connect. There is no
// way through an open directory here, so a long path is refused.
func socketPath(_ *os.File, dirPath, name string) (string, error) {
	path := filepath.Join(dirPath, name)
	if len(path) > maxSocketPath {
		return "", &Error{Code: CodePathTooLong, Path: path}
	}
	return path, nil
}
