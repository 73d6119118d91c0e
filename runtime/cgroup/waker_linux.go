package cgroup

import (
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// waker turns kernel notifications into sends on one channel. Its descriptors are
// non-blocking and handled by the Go runtime's poller, so waiting costs no thread.
type waker struct {
	ch chan struct{}

	mu    sync.Mutex
	files []*os.File
	wg    sync.WaitGroup
}

func newWaker() (*waker, error) { return &waker{ch: make(chan struct{}, 1)}, nil }

// C implements eventSource.
func (w *waker) C() <-chan struct{} { return w.ch }

// Close implements eventSource. It waits for the readers to end.
func (w *waker) Close() {
	w.mu.Lock()
	for _, f := range w.files {
		f.Close()
	}
	w.files = nil
	w.mu.Unlock()
	w.wg.Wait()
}

// pump reads f until it is closed and sends for each successful read.
func (w *waker) pump(f *os.File) {
	w.mu.Lock()
	w.files = append(w.files, f)
	w.mu.Unlock()
	w.wg.Go(func() {
		buf := make([]byte, 4096)
		for {
			if _, err := f.Read(buf); err != nil {
				return
			}
			select {
			case w.ch <- struct{}{}:
			default: // one pending wake-up says as much as two
			}
		}
	})
}

// inotify wakes when one of the held control files is modified. The files are named
// through /proc/self/fd, so that the watch is on the inode we hold.
func (w *waker) inotify(files ...*os.File) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fail(CodeIO, "inotify_init1", "", err)
	}
	for _, f := range files {
		name := "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
		if _, err := unix.InotifyAddWatch(fd, name, unix.IN_MODIFY); err != nil {
			unix.Close(fd)
			return fail(CodeIO, "inotify_add_watch", f.Name(), err)
		}
	}
	w.pump(os.NewFile(uintptr(fd), "inotify"))
	return nil
}

// oom wakes when a cgroup v1 memory group is out of memory.
func (w *waker) oom(d *dir, control *os.File) error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fail(CodeIO, "eventfd", "", err)
	}
	if err := d.write("cgroup.event_control", fmt.Sprintf("%d %d", fd, control.Fd())); err != nil {
		unix.Close(fd)
		return fail(CodeIO, "event_control", joinPath(d.path, "cgroup.event_control"), err)
	}
	w.pump(os.NewFile(uintptr(fd), "eventfd"))
	return nil
}
