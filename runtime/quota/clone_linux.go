package quota

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"
)

const cloneFlags = unix.OPEN_TREE_CLONE | unix.O_CLOEXEC | unix.AT_EMPTY_PATH

// cloneMount gives a detached mount of the directory dir, which is the entry
// name of the root of the mount behind mnt.
//
// Since Linux 6.15 open_tree clones a part of a detached mount. Before, it
// answers EINVAL for every mount outside the caller's mount namespace; then
// the clone is made by way of a namespace that only one thread ever sees.
func cloneMount(mnt, dir int, name string) (int, error) {
	fd, err := unix.OpenTree(dir, "", cloneFlags)
	if !errors.Is(err, unix.EINVAL) {
		return fd, err
	}
	return cloneThroughNamespace(mnt, name)
}

// cloneThroughNamespace attaches the mount in a mount namespace of its own,
// clones both the whole and the part there, and puts the clone of the whole
// behind the descriptor mnt, since a mount that has been attached is lost with
// the namespace. Nothing is ever visible to another process: the namespace
// belongs to one thread, is private before anything is attached, and ends with
// the thread.
func cloneThroughNamespace(mnt int, name string) (int, error) {
	var fd int
	var err error
	onDyingThread(func() { fd, err = cloneInNewNamespace(mnt, name) })
	return fd, err
}

// onDyingThread runs fn on an operating system thread that nothing else ever
// uses again, and returns when fn has.
func onDyingThread(fn func()) {
	done := make(chan struct{})
	var start func()
	start = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread cannot die before the process, and /proc/self
			// speaks for it. Hold it, so that the next try gets another one.
			defer runtime.UnlockOSThread()
			inner := make(chan struct{})
			go func() { defer close(inner); start() }()
			<-inner
			return
		}
		// Never unlocked: the runtime ends the thread with the goroutine.
		defer close(done)
		fn()
	}
	go start()
	<-done
}

func cloneInNewNamespace(mnt int, name string) (int, error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return -1, err
	}
	// Private first: a shared parent would show the mount on the host.
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return -1, err
	}
	if err := unix.MoveMount(mnt, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return -1, err
	}
	whole, err := unix.OpenTree(mnt, "", cloneFlags)
	if err != nil {
		return -1, err
	}
	defer unix.Close(whole)
	part, err := unix.OpenTree(mnt, name, unix.OPEN_TREE_CLONE|unix.O_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	if err := unix.Dup3(whole, mnt, unix.O_CLOEXEC); err != nil {
		unix.Close(part)
		return -1, err
	}
	return part, nil
}
