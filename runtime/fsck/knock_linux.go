package fsck

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// knock connects to the socket called name in dir, by the descriptor, as a path
// may be longer than an address holds. It returns nil if somebody listens.
func knock(dir *os.File, name string) error {
	conn, err := net.Dial("unix", filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), name))
	if err != nil {
		return err
	}
	return conn.Close()
}
