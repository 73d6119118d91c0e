package workspace

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// entry is a name in a directory and the kind of object it is, as S_IFMT bits.
type entry struct {
	name string
	kind uint32
}

// direntHeader is where the name begins in a struct linux_dirent64: after
// inode (8), offset (8), record length (2) and type (1).
const direntHeader = 19

var errDirent = errors.New("malformed directory entry")

// list reads a directory from its beginning, "." and ".." left out. More than
// limit entries give CodeTooMany, before they are kept. os.File.ReadDir does
// not do: for filesystems that do not report types it asks again by path.
func list(dir, limit int) ([]entry, error) {
	if _, err := unix.Seek(dir, 0, 0); err != nil {
		return nil, &Error{Code: CodeIO, Err: err}
	}
	var all []entry
	buf := make([]byte, 16<<10)
	for {
		n, err := unix.Getdents(dir, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, &Error{Code: CodeIO, Err: err}
		}
		if n == 0 {
			return all, nil
		}
		if all, err = parse(all, buf[:n], limit); err != nil {
			return nil, err
		}
	}
}

func parse(all []entry, p []byte, limit int) ([]entry, error) {
	for len(p) > 0 {
		if len(p) < direntHeader {
			return nil, &Error{Code: CodeIO, Err: errDirent}
		}
		size := int(binary.NativeEndian.Uint16(p[16:]))
		if size < direntHeader || size > len(p) {
			return nil, &Error{Code: CodeIO, Err: errDirent}
		}
		name, _, _ := bytes.Cut(p[direntHeader:size], []byte{0})
		// d_type is the kind shifted down by twelve bits (DT_REG is 8, S_IFREG 0100000).
		e := entry{string(name), uint32(p[18]) << 12}
		p = p[size:]
		if e.name == "." || e.name == ".." {
			continue
		}
		if len(all) == limit {
			return nil, &Error{Code: CodeTooMany}
		}
		all = append(all, e)
	}
	return all, nil
}

// resolve asks for the kind of an entry whose directory did not tell it.
func (e *entry) resolve(dir int) error {
	if e.kind != 0 {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, e.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	e.kind = kind(&st)
	return nil
}
