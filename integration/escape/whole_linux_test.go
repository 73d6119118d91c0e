package escape

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// playWhole plays the acts that take a session of their own, and the small parts of others.
func playWhole(act string, _ []string) int {
	switch act {
	case "orphan":
		// The child outlives us and ends at once: it is pid 1's to reap.
		cmd := exec.Command("/proc/self/exe", roleNothing)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return 1
		}
		fmt.Println(cmd.Process.Pid)
		return 0
	}
	fmt.Fprintln(os.Stderr, "no such act:", act)
	return 99
}
