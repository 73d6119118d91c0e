package sandbox

import (
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// setupCaps are what building a room needs, in the room's own user namespace.
var setupCaps = []uintptr{
	unix.CAP_SYS_ADMIN, // mounts, the host name, the cgroup namespace
	unix.CAP_NET_ADMIN, // raising lo
	unix.CAP_SETPCAP,   // dropping the bounding set, locking the secure bits
}

// spawner runs functions on one thread that never ends. The parent-death signal is
// sent when the *thread* that made a process ends, not its process: made on any
// other thread, a session would die when the Go runtime lets that thread go
// (golang/go#27505).
var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func onSpawner(f func()) {
	done := make(chan struct{})
	spawner() <- func() { defer close(done); f() }
	<-done
}

// devNull is init's standard input, output and error until it is in its room.
var devNull = sync.OnceValues(func() (*os.File, error) { return os.OpenFile(os.DevNull, os.O_RDWR, 0) })

// spawn starts init in new namespaces with the descriptors given from 3 up, and
// executes the one at fdExe by its number in the child: the runtime lays the child's
// descriptors out before it executes, and would put another one over a number that
// was right in the parent.
func spawn(t Tenant, k knobs, files []*os.File) (*os.Process, *os.File, error) {
	null, err := devNull()
	if err != nil {
		return nil, nil, err
	}
	stderr := null
	if k.Stderr {
		stderr = os.Stderr
	}
	pidFD := -1
	attr := &os.ProcAttr{
		Dir:   "/",
		Env:   RoleEnv(),
		Files: append([]*os.File{null, null, stderr}, files...),
		Sys: &syscall.SysProcAttr{
			Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET |
				unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
			UidMappings:                []syscall.SysProcIDMap{{ContainerID: InsideUID, HostID: int(t.HostUID), Size: 1}},
			GidMappings:                []syscall.SysProcIDMap{{ContainerID: InsideGID, HostID: int(t.HostGID), Size: 1}},
			GidMappingsEnableSetgroups: t.DropGroups,
			Credential:                 &syscall.Credential{Uid: InsideUID, Gid: InsideGID, NoSetGroups: !t.DropGroups},
			AmbientCaps:                setupCaps,
			Setsid:                     true,
			Pdeathsig:                  syscall.SIGKILL,
			PidFD:                      &pidFD,
		},
	}
	var p *os.Process
	onSpawner(func() { p, err = os.StartProcess(fdPath(fdExe), roleArgs(roleStart, k), attr) })
	if err != nil {
		return nil, nil, err
	}
	if pidFD < 0 {
		_ = p.Kill()
		_, _ = p.Wait()
		return nil, nil, syscall.ENOSYS
	}
	return p, os.NewFile(uintptr(pidFD), "init pidfd"), nil
}

// RoleEnv is the environment of every process that plays a role of ours: only
// what its Go runtime reads. It is told to use one processor, of which none has
// work for more, and not to look for limits in /proc/self/mountinfo and the
// control groups: both are measurable parts of its start (containermaxprocs is of
// Go 1.25).
func RoleEnv() []string {
	return []string{"GOMAXPROCS=1", "GODEBUG=containermaxprocs=0"}
}
