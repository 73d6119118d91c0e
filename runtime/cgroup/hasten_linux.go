package cgroup

// Hasten makes [Group.Add] quick for about the next ten milliseconds. It takes
// as long as an unprepared Add (some eight milliseconds) and is called from a
// goroutine of its own while there is other work to do.
//
// Why: moving a process by cgroup.procs write-locks a per-CPU semaphore of the
// kernel, and the first writer after a pause waits for an RCU grace period
// (percpu_down_write in cgroup_attach_lock, kernel/cgroup/cgroup.c). Hasten is
// that first writer: it moves the calling process to the group in which it
// already is. Where the process may not do that, nothing happens; Add then
// takes its time. Nobody else may be moving the calling process meanwhile.
func Hasten() { _ = realEnv().hasten() } // see above

func (e *env) hasten() error {
	mounts, err := e.mounts()
	if err != nil {
		return err
	}
	own, err := e.membership(0)
	if err != nil {
		return err
	}
	controller := ""
	if usesV1(mounts) {
		controller = "memory"
	}
	here, err := e.openMember(mounts, own, controller)
	if err != nil {
		return err
	}
	defer here.close()
	return here.write("cgroup.procs", "0") // 0 is the writer, with all its threads
}
