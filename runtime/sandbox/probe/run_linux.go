package probe

import (
	"errors"
	"sync"

	"gloved.dev/internal/digest"
	"golang.org/x/sys/unix"
)

// act is one forbidden attempt.
type act struct {
	name string
	// try returns zero when the act succeeded.
	try func() unix.Errno
	// refusals are the answers that prove that it was refused.
	refusals []unix.Errno
}

// Run tries every act on the calling thread, in order, and returns the results. The
// goroutine must be locked to the confined thread. It goes on after a breach, so
// that the report shows all of them.
func Run() []Result {
	list := acts()
	out := make([]Result, len(list))
	for i, a := range list {
		out[i] = a.run()
	}
	return out
}

func (a act) run() Result {
	errno := a.try()
	r := Result{Name: a.name, Answer: answer(errno)}
	for _, e := range a.refusals {
		if errno == e {
			r.Refused = true
		}
	}
	return r
}

func answer(e unix.Errno) string {
	if e == 0 {
		return "success"
	}
	if name := unix.ErrnoName(e); name != "" {
		return name
	}
	return "unknown"
}

// Digest is the digest of the list: a domain, the number of acts, then for each its
// name and the names of its refusals, in the length-prefixed encoding.
var Digest = sync.OnceValue(func() string {
	list := acts()
	d := digest.New("gloved.sandbox-probe-v1").U32(uint32(len(list)))
	for _, a := range list {
		names := make([]string, len(a.refusals))
		for i, e := range a.refusals {
			names[i] = answer(e)
		}
		d.S(a.name).Strings(names)
	}
	return d.Sum()
})

// errnoOf reduces what x/sys returns to the errno.
func errnoOf(err error) unix.Errno {
	if err == nil {
		return 0
	}
	var e unix.Errno
	if errors.As(err, &e) {
		return e
	}
	return unix.EIO
}

// call makes a raw system call and returns only its errno.
func call(nr uintptr, args ...uintptr) unix.Errno {
	var a [6]uintptr
	copy(a[:], args)
	_, _, e := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	return e
}

// opens tries to open path and closes what it got.
func opens(path string, flags int) func() unix.Errno {
	return func() unix.Errno {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			return errnoOf(err)
		}
		unix.Close(fd)
		return 0
	}
}

// makes tries to create an object with create and removes what it made.
func makes(path string, create func(path string) error, remove func(path string) error) func() unix.Errno {
	return func() unix.Errno {
		if err := create(path); err != nil {
			return errnoOf(err)
		}
		_ = remove(path) // the start is aborted either way
		return 0
	}
}
