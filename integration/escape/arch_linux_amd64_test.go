package escape

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// archAttempts go around the filter by the processor's other system call tables, and reach for what
// only this architecture has.
func archAttempts() []attempt {
	return []attempt{
		{name: "arch: the 32-bit table", refused: absent, lacking: absent, act: table32},
		{name: "arch: the x32 table", refused: absent, lacking: absent, act: func(*facts) error { return call(0x40000000 | unix.SYS_GETPID) }},
		{name: "arch: the local descriptor table", refused: denied, lacking: absent, act: func(*facts) error {
			var entry [16]byte
			return call(unix.SYS_MODIFY_LDT, 0, uintptr(unsafe.Pointer(&entry)), unsafe.Sizeof(entry))
		}},
		{name: "arch: input and output ports", refused: denied, lacking: absent, act: func(*facts) error { return call(unix.SYS_IOPL, 3) }},
		{name: "arch: one port", refused: denied, lacking: absent, act: func(*facts) error { return call(unix.SYS_IOPERM, 0x80, 1, 1) }},
		{name: "arch: the old mount lister", refused: denied, reached: "success EINVAL ENOSYS", act: func(*facts) error { return call(unix.SYS_SYSFS, 3) }},
	}
}

// table32 asks for the process's id by an interrupt, which takes the number from the table of
// 32-bit programs: 20 is getpid there and writev here.
func table32(*facts) error {
	code := []byte{0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3} // mov eax, 20; int 0x80; ret
	m, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return said("no-memory")
	}
	copy(m, code)
	if err := unix.Mprotect(m, unix.PROT_READ|unix.PROT_EXEC); err != nil {
		return said("not-executable")
	}
	// A function value points to a word that points to the code.
	entry := uintptr(unsafe.Pointer(&m[0]))
	word := &entry
	got := int32((*(*func() uintptr)(unsafe.Pointer(&word)))())
	switch {
	case got < 0:
		return syscall.Errno(-got)
	case int(got) != os.Getpid():
		return said("other-content")
	}
	return nil
}
