package sandbox

import (
	"syscall"
	"testing"
)

func TestExits(t *testing.T) {
	needRoom(t)
	for _, row := range []struct {
		name   string
		script string
		want   Exit
	}{
		{"zero", "exit 0", Exit{}},
		{"code", "exit 42", Exit{Code: 42}},
		{"largest", "exit 255", Exit{Code: 255}},
		{"term", "kill -TERM $$", Exit{Code: -1, Signal: syscall.SIGTERM}},
		{"kill", "kill -KILL $$", Exit{Code: -1, Signal: syscall.SIGKILL}},
		{"segv", "kill -SEGV $$", Exit{Code: -1, Signal: syscall.SIGSEGV}},
		{"orphans", "sleep 1000 & setsid sleep 1000 & exit 7", Exit{Code: 7}},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := run(t, shell(t, row.script))
			if got.exit != row.want {
				t.Errorf("exit = %+v, want %+v; output %q", got.exit, row.want, got.output)
			}
		})
	}
}
