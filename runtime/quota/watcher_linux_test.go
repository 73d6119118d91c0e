package quota

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWatcher(t *testing.T) {
	for _, reason := range []string{ReasonBytes, ReasonInodes} {
		t.Run(reason, func(t *testing.T) {
			quiet := newFS(t, Partition{Alias: "quiet", Bytes: 64 * page, Inodes: 100}, Options{Mode: 0o700})
			busy := newFS(t, Partition{Alias: "busy", Bytes: 64 * page, Inodes: 100}, Options{Mode: 0o700})
			got := make(chan Full, 2)
			w := Watch([]*FS{quiet, busy}, func(f Full) { got <- f }, func(err error) { t.Error(err) })
			if reason == ReasonBytes {
				if err := unix.Fallocate(int(create(t, busy.Dir(), "x").Fd()), 0, 0, 64*page); err != nil {
					t.Fatal(err)
				}
			} else {
				for i := range 99 {
					create(t, busy.Dir(), string(rune('0'+i)))
				}
			}
			full := <-got
			if full.Alias != "busy" || full.Reason != reason {
				t.Errorf("got %+v", full)
			}
			w.Stop()
			w.Stop()
			if len(got) != 0 {
				t.Error("called back twice")
			}
		})
	}
}

func TestWatcherError(t *testing.T) {
	f := newFS(t, Partition{Bytes: 64 * page, Inodes: 100}, Options{Mode: 0o700})
	f.Close()
	got := make(chan error, 2)
	w := Watch([]*FS{f}, func(f Full) { t.Errorf("full: %+v", f) }, func(err error) { got <- err })
	if err := <-got; !errors.Is(err, &Error{Code: CodeClosed}) {
		t.Error(err)
	}
	w.Stop()
	if len(got) != 0 {
		t.Error("called back twice")
	}
}
