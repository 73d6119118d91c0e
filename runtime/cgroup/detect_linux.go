package cgroup

import "sync"

// detecting serialises Detect within the process: it may move the process.
var detecting sync.Mutex

func detect() (backend, error) { return detectIn(realEnv()) }

func detectIn(e *env) (backend, error) {
	detecting.Lock()
	defer detecting.Unlock()
	mounts, err := e.mounts()
	if err != nil {
		return nil, err
	}
	if len(mounts) == 0 {
		return nil, &Error{Code: CodeNoMount, Op: "detect", Name: "/sys/fs/cgroup",
			Fix: "mount -t cgroup2 cgroup2 /sys/fs/cgroup"}
	}
	own, err := e.membership(0)
	if err != nil {
		return nil, err
	}
	if usesV1(mounts) {
		return detectV1(e, mounts, own)
	}
	return detectV2(e, mounts, own)
}
