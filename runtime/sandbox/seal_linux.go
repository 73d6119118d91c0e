package sandbox

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// allSeals makes a memory file immutable for ever, including the set of seals.
const allSeals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

var sealedExe = sync.OnceValues(sealExe)

// SealedExe returns this process's own executable as a sealed memory file, to be
// executed as /proc/self/fd/N. It is made once per process and stays open; the
// caller must not close it. A process that already runs from such a file gets that
// file again, without a copy.
//
// Why: whatever runs inside a session could otherwise open the executable of the
// process that set it up (through /proc/PID/exe) and, with the right timing, write
// the host's file (CVE-2019-5736). Nothing can write a sealed file.
//
// Its descriptor number is high: a child's own descriptors are laid out from 0 up
// before it executes, and must not cover the number it is about to execute.
func SealedExe() (*os.File, error) { return sealedExe() }

// exeFloor is the lowest descriptor number SealedExe uses.
const exeFloor = 256

func sealExe() (*os.File, error) {
	f, err := sealedFile()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, exeFloor)
	if err != nil {
		return nil, &StepError{Step: stepExecutable, Errno: errnoOf(err), Detail: "descriptor"}
	}
	return os.NewFile(uintptr(fd), "gloved"), nil
}

// sealedFile is the running executable if it is sealed, or a sealed copy.
func sealedFile() (*os.File, error) {
	src, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, &StepError{Step: stepExecutable, Errno: errnoOf(err), Detail: "executable"}
	}
	if isSealed(src) {
		return src, nil
	}
	defer src.Close()
	dst, err := memfd("gloved", src)
	if err != nil {
		return nil, &StepError{Step: stepExecutable, Errno: errnoOf(err), Detail: "copy of the executable"}
	}
	return dst, nil
}

func isSealed(f *os.File) bool {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	return err == nil && seals&allSeals == allSeals
}

// memfd makes a sealed memory file with the content of src, opened for reading
// only: execve refuses a file that anyone still has open for writing.
func memfd(name string, src *os.File) (*os.File, error) {
	fi, err := src.Stat()
	if err != nil {
		return nil, err
	}
	w, err := newMemfd(name)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	for left := fi.Size(); left > 0; {
		n, err := unix.Sendfile(int(w.Fd()), int(src.Fd()), nil, int(min(left, 1<<30)))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, unix.EIO // it shrank under us
		}
		left -= int64(n)
	}
	return seal(w)
}

// memfdOf makes a sealed memory file that holds data.
func memfdOf(name string, data []byte) (*os.File, error) {
	w, err := newMemfd(name)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	return seal(w)
}

// newMemfd asks for an executable file, which hosts that restrict memory files
// (vm.memfd_noexec, Linux 6.3) want to be asked for; older kernels do not know the
// flag.
func newMemfd(name string) (*os.File, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_EXEC)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func seal(w *os.File) (*os.File, error) {
	if _, err := unix.FcntlInt(w.Fd(), unix.F_ADD_SEALS, allSeals); err != nil {
		return nil, err
	}
	return os.Open(fdPath(int(w.Fd())))
}
