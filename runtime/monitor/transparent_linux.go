package monitor

import (
	"os"

	"golang.org/x/sys/unix"
)

// transparent makes a terminal pass bytes as they are: output unprocessed, no echo,
// no signals, no flow control, no translation. Canonical mode stays, because without
// it a terminal has no end of input; all its control characters are off but two: ^D
// hands on what came so far, or ends the input when nothing did, and ^V makes the
// next byte data, so that every byte can be sent (termios(3): VEOF, VLNEXT).
func transparent(terminal *os.File) error {
	conn, err := terminal.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		t, err := unix.IoctlGetTermios(int(fd), unix.TCGETS)
		if err != nil {
			failed = os.NewSyscallError("TCGETS", err)
			return
		}
		t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.IGNPAR | unix.PARMRK | unix.INPCK | unix.ISTRIP |
			unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IUCLC | unix.IXON | unix.IXANY | unix.IXOFF | unix.IMAXBEL
		t.Oflag &^= unix.OPOST
		t.Lflag &^= unix.ECHO | unix.ECHOE | unix.ECHOK | unix.ECHONL | unix.ECHOCTL | unix.ECHOKE | unix.ISIG | unix.TOSTOP
		t.Lflag |= unix.ICANON | unix.IEXTEN
		for i := range t.Cc {
			t.Cc[i] = 0 // _POSIX_VDISABLE
		}
		t.Cc[unix.VEOF], t.Cc[unix.VLNEXT] = 4, 22
		failed = os.NewSyscallError("TCSETS", unix.IoctlSetTermios(int(fd), unix.TCSETS, t))
	})
	if err != nil {
		return err
	}
	return failed
}
