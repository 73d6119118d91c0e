package cgroup

import "runtime"

// onlineCPUs asks the host, not this process's affinity: a session can widen its own.
func onlineCPUs() int {
	data, err := readBounded("/sys/devices/system/cpu/online", MaxControlFile)
	if err == nil {
		if n, err := countCPUs(data); err == nil {
			return max(n, runtime.NumCPU())
		}
	}
	return runtime.NumCPU()
}
