package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const idleSessions = 8

// memoryGoal is what an idle session's own processes may hold, in bytes.
const memoryGoal = 15 << 20

// BenchmarkMemory shows what an idle session costs: the memory of its monitor
// and its init, not of the program it runs, as the kernel attributes it
// (smaps_rollup: PSS, in which a page shared by n processes counts 1/n, and the
// private part alone), a while after the start, over several sessions.
func BenchmarkMemory(b *testing.B) {
	d := serve(b, map[string][]string{"idle": {"/bin/sleep", "600"}})
	for b.Loop() {
		var ids []string
		for range idleSessions {
			a, err := d.create("idle")
			must(b, err)
			must(b, d.start(a))
			ids = append(ids, a.SessionID)
		}
		<-time.After(3 * time.Second) // a monitor tidies up when it has been idle
		var pss, private []uint64
		for _, pids := range sessionProcesses(b, d.cmd.Process.Pid) {
			var p, q uint64
			for _, pid := range pids {
				m, err := rollup(pid)
				must(b, err)
				p, q = p+m["Pss"], q+m["Private_Clean"]+m["Private_Dirty"]
			}
			pss, private = append(pss, p), append(private, q)
		}
		if len(pss) < idleSessions {
			b.Fatalf("%d sessions' processes found, want %d", len(pss), idleSessions)
		}
		slices.Sort(pss)
		slices.Sort(private)
		m := pss[len(pss)/2]
		verdict := "held"
		if m >= memoryGoal {
			verdict = "MISSED"
		}
		printOnce()
		fmt.Printf("\nmemory of an idle session's monitor and init, %d sessions, median\n"+
			"  PSS %.1f MiB (goal under %d MiB: %s), of that private %.1f MiB\n",
			idleSessions, mib(m), memoryGoal>>20, verdict, mib(private[len(private)/2]))
		b.ReportMetric(mib(m), "MiB/session")
		for _, id := range ids {
			_, err := d.StopSession(b.Context(), "stop-"+id, id)
			must(b, err)
			must(b, d.forget(id))
		}
	}
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }

// sessionProcesses returns for each monitor below gloved its pid and its init's.
func sessionProcesses(b *testing.B, gloved int) [][]int {
	b.Helper()
	children := map[int][]int{}
	dirs, err := filepath.Glob("/proc/[0-9]*/stat")
	must(b, err)
	for _, path := range dirs {
		stat, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || err != nil {
			continue // it ended meanwhile
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		parent, _ := strconv.Atoi(string(fields[1]))
		children[parent] = append(children[parent], pid)
	}
	var all [][]int
	for _, monitor := range children[gloved] {
		if inits := children[monitor]; len(inits) > 0 {
			all = append(all, append([]int{monitor}, inits...))
		}
	}
	return all
}

// rollup reads the sums of a process's memory, in bytes.
func rollup(pid int) (map[string]uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return nil, err
	}
	m := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		if n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64); err == nil {
			m[name] = n << 10
		}
	}
	return m, nil
}
