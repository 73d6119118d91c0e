package room

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/sandbox"
)

// makerTasks are the tasks of the room's maker, which shares the control group: the room meets its
// own bound before the maker cannot have a thread.
const makerTasks = 64

// groupPrefix begins the name of every room's control group; the pid of the program that made it and
// random letters follow.
const groupPrefix = "approval-room-"

// memoryBound leaves the machine a quarter of what it has.
func memoryBound() uint64 {
	var i unix.Sysinfo_t
	if unix.Sysinfo(&i) != nil {
		return 0
	}
	total := uint64(i.Totalram) * uint64(i.Unit) //nolint:unconvert // 32 bits elsewhere
	return total / 4 * 3
}

// enclose puts the blocked maker pid, and with it the whole room, into a control group that bounds
// memory and tasks. Where this user may make none, nothing happens and the room's processes are
// bounded by their resource limit alone. release takes the group away once the room has ended.
func (o *Options) enclose(pid int) (release func(), err error) {
	nothing := func() {}
	memory := o.Memory
	if memory == 0 {
		memory = memoryBound()
	}
	host, err := cgroup.Detect()
	if err != nil || memory < cgroup.MinMemory {
		return nothing, nil //nolint:nilerr // no control groups here: see above
	}
	sweep(host)
	var random [6]byte
	rand.Read(random[:]) // never fails (crypto/rand)
	name := fmt.Sprintf("%s%d-%s", groupPrefix, unix.Getpid(), hex.EncodeToString(random[:]))
	group, err := host.Create(name, cgroup.Limits{MemoryBytes: memory, PIDs: o.processes() + makerTasks})
	if err != nil {
		_ = host.Close() // nothing was made
		return nothing, nil
	}
	release = func() {
		_ = group.Destroy(context.WithoutCancel(context.Background())) // what stays is empty, and swept
		group.Close()
		_ = host.Close()
	}
	if err := group.Add(pid); err != nil {
		release()
		return nothing, err
	}
	return release, nil
}

// sweep removes groups of rooms whose program was killed: of no living process, and empty.
func sweep(host *cgroup.Host) {
	names, err := host.Names(groupPrefix)
	if err != nil {
		return
	}
	for _, name := range names {
		text, _, _ := strings.Cut(strings.TrimPrefix(name, groupPrefix), "-")
		pid, err := strconv.Atoi(text)
		if err != nil || !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			continue
		}
		id, err := host.Lookup(name)
		if err != nil { // half made or half removed, when its program was killed
			_ = host.Sweep(context.Background(), name) // the next room tries again
			continue
		}
		group, err := host.Open(name, id)
		if err != nil {
			continue
		}
		if full, err := group.Populated(); err == nil && !full {
			_ = group.Destroy(context.Background()) // the next room tries again
		}
		group.Close()
	}
}

func (o *Options) processes() uint32 {
	if o.Processes == 0 {
		return DefaultProcesses
	}
	return o.Processes
}

// fewProcesses bounds the tasks of the room by a resource limit, which its command inherits and
// cannot raise. Since Linux 5.14 tasks are counted in the room's own user namespace.
func fewProcesses(n uint32) func(sandbox.Process) error {
	return func(p sandbox.Process) error {
		limit := unix.Rlimit{Cur: uint64(n), Max: uint64(n)}
		return unix.Prlimit(p.PID, unix.RLIMIT_NPROC, &limit, nil)
	}
}
