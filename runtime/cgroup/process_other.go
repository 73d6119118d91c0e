//go:build !linux

package cgroup

func identify(int) (ProcessIdentity, error) {
	return ProcessIdentity{}, fail(CodeUnsupported, "identify", "", nil)
}

func observe(ProcessIdentity) (Observation, error) {
	return 0, fail(CodeUnsupported, "observe", "", nil)
}
