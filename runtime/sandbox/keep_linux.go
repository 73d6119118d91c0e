package sandbox

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// asking are the signals that ask a session to end.
var asking = []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT}

// ignoreHarness keeps the harness from ending pid 1 by a signal, which would take the
// session down with nobody left to say how the harness ended. The kernel drops what
// comes from inside for a pid 1 without a handler, but the Go runtime has one for
// every signal, and takes a SIGSEGV that somebody sends for a crash of its own. What
// stays is what forward handles, and SIGURG, by which the runtime interrupts its own
// threads.
func ignoreHarness() error {
	return defaultActions(append([]syscall.Signal{unix.SIGURG}, asking...)...)
}

// forward passes the signals that ask a session to end on to the harness; the
// kernel would drop them, pid 1 having no handler.
func forward(launch int) {
	signals := make(chan os.Signal, 16)
	for _, s := range asking {
		signal.Notify(signals, s)
	}
	go func() {
		for s := range signals {
			if n, ok := s.(syscall.Signal); ok {
				_ = unix.Kill(launch, n) // it may have ended
			}
		}
	}()
}

// endWithCaller ends pid 1, and with it everything, when the caller's end of the
// socket is gone. The caller sends nothing here, so anything but silence is the end.
func endWithCaller() {
	var b [1]byte
	_ = retry(func() error {
		_, _, err := unix.Recvfrom(fdControl, b[:], 0)
		return err
	})
	os.Exit(1)
}

// reapUntil reaps whatever is or becomes a child of pid 1, until launch is among it,
// and returns launch's status.
func reapUntil(launch int) syscall.WaitStatus {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WALL, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			os.Exit(1) // launch is not our child: nothing here makes sense
		}
		if pid == launch {
			return status
		}
	}
}

// killRest kills what the harness left behind and reaps it, so that the namespace
// ends now and not when a stray process does.
func killRest() {
	_ = unix.Kill(-1, unix.SIGKILL)
	for {
		_, err := syscall.Wait4(-1, nil, syscall.WALL, nil)
		if err != nil && err != syscall.EINTR {
			return
		}
	}
}
