package sandbox

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestInitIsNotEndedBySignals sends pid 1 what a harness could send it where Landlock does not keep
// it from doing so. The kernel treats both senders alike, but for SIGKILL and SIGSTOP.
func TestInitIsNotEndedBySignals(t *testing.T) {
	needRoom(t)
	s := start(t, config(t, "/bin/sh", "-c", "read line; exit 7"))
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	drain(s)
	pid := s.Init().PID
	var caught uint64
	for _, sig := range append([]unix.Signal{unix.SIGURG}, asking...) {
		caught |= 1 << (sig - 1)
	}
	got, err := strconv.ParseUint(status(t, pid, "SigCgt")["SigCgt"], 16, 64)
	if err != nil || got != caught {
		t.Errorf("init catches %#x, %v; want %#x", got, err, caught)
	}
	for sig := unix.Signal(1); sig <= lastSignal; sig++ {
		if sig == unix.SIGKILL || sig == unix.SIGSTOP || caught&(1<<(sig-1)) != 0 {
			continue
		}
		if err := unix.PidfdSendSignal(int(s.Init().PidFD.Fd()), sig, nil, 0); err != nil {
			t.Fatalf("signal %d: %v", sig, err)
		}
	}
	if _, err := s.Terminal().WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, s); exit != (Exit{Code: 7}) {
		t.Errorf("exit = %+v, want 7", exit)
	}
	if _, err := os.Stat("/proc/" + strconv.Itoa(pid)); err == nil {
		t.Error("init is still there")
	}
}
