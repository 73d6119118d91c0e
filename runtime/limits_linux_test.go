package runtime

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/policy"
)

// limited is generous with one change.
func limited(change func(*policy.Limits)) policy.Limits {
	l := generous
	change(&l)
	return l
}

// sh runs script under limits, to its recorded end.
func sh(t testing.TB, l policy.Limits, script string, grants ...string) (w *world, output string, rec session.Record) {
	t.Helper()
	w = newWorld(t, l, "/bin/sh", "-c", script)
	w.trust()
	before := w.inventory()
	var list []policy.AliasGrant
	for _, g := range grants {
		list = append(list, w.grant(g))
	}
	output, rec = w.run(list...)
	_, err := w.Cleanup(t.Context(), rec.SessionID)
	must(t, err)
	w.same(before) // however it ended, nothing of it is left
	return w, output, rec
}

// receiptFor checks the receipt of an ended session against its limits, and
// returns it.
func (w *world) receiptFor(rec session.Record) *receipt.Resource {
	w.t.Helper()
	r := w.envelope(rec).Resource
	if r == nil {
		w.t.Fatal("no resource receipt")
	}
	m := w.Mechanisms()
	want := receipt.Mechanisms{CPUTime: m.CPUTime, Memory: m.Memory, PIDs: m.PIDs, WallTime: "watchdog", Disk: "filesystem_quota",
		TerminalOutput: "byte_counter", SchemaVersion: 1}
	if r.Mechanisms != want || (m.Memory != receipt.MechanismCgroupV1 && m.Memory != receipt.MechanismCgroupV2) {
		w.t.Errorf("mechanisms %+v, want %+v", r.Mechanisms, want)
	}
	if r.ConfiguredLimits != receipt.Limits(w.doc.ResourceProfiles[0].Limits()) {
		w.t.Errorf("limits %+v", r.ConfiguredLimits)
	}
	if (r.ExitCode != nil) != (r.TerminationCause == receipt.CauseExited) {
		w.t.Errorf("cause %s with exit code %v", r.TerminationCause, r.ExitCode)
	}
	return r
}

// diskPlaces are where a session can write: the scratch partition under all its
// names, and the copy of the workspace, which is a partition of its own.
var diskPlaces = []string{"/tmp", "/var/tmp", "/dev/shm", "$HOME", "/workspace"}

const disk = 8 << 20

func TestLimits(t *testing.T) {
	type test struct {
		name   string
		limits policy.Limits
		script string
		cause  string
	}
	small := limited(func(l *policy.Limits) { l.DiskBytes = disk })
	memory := limited(func(l *policy.Limits) { l.MemoryBytes = 64 << 20 })
	tests := []test{
		{"cpu over", limited(func(l *policy.Limits) { l.CPUTimeMS = 200 }), "while :; do :; done", receipt.CauseCPUTimeLimit},
		{"cpu over in children", limited(func(l *policy.Limits) { l.CPUTimeMS = 200 }),
			"for i in 1 2 3; do (while :; do :; done) & done; wait", receipt.CauseCPUTimeLimit},
		{"cpu within", limited(func(l *policy.Limits) { l.CPUTimeMS = 5000 }), "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); done", receipt.CauseExited},
		// The child dies for want of memory, its parent would go on for ever.
		{"memory over in a child", memory, "dd if=/dev/zero of=/dev/null bs=200M count=1 & wait; sleep 1000", receipt.CauseMemoryLimit},
		{"memory over", memory, "exec dd if=/dev/zero of=/dev/null bs=200M count=1", receipt.CauseMemoryLimit},
		{"memory within", memory, "dd if=/dev/zero of=/dev/null bs=20M count=1", receipt.CauseExited},
		{"fork bomb", limited(func(l *policy.Limits) { l.PIDs = 16 }), "b() { b | b & }; b; sleep 1000", receipt.CausePIDLimit},
		{"pids within", limited(func(l *policy.Limits) { l.PIDs = 16 }), "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1 & done; wait", receipt.CauseExited},
		{"wall over, away from the session", limited(func(l *policy.Limits) { l.WallTimeMS = 300 }),
			"setsid sh -c 'setsid sh -c \"trap : TERM HUP INT; sleep 1000\" &' & sleep 1000", receipt.CauseWallTimeLimit},
		{"wall within", limited(func(l *policy.Limits) { l.WallTimeMS = 20_000 }), "sleep 0.05", receipt.CauseExited},
		{"output at", limited(func(l *policy.Limits) { l.TerminalOutputBytes = 10_000 }), "head -c 10000 /dev/zero", receipt.CauseExited},
		{"output over", limited(func(l *policy.Limits) { l.TerminalOutputBytes = 10_000 }), "head -c 10001 /dev/zero; sleep 1000", receipt.CauseTerminalOutputLimit},
		{"output over on a fast exit", limited(func(l *policy.Limits) { l.TerminalOutputBytes = 10_000 }), "exec head -c 10001 /dev/zero", receipt.CauseTerminalOutputLimit},
		// 8 MiB less the workspace's 2 leave 6 for scratch.
		{"disk within", small, "head -c 4M /dev/zero >/tmp/x; head -c 1M /dev/zero >/dev/shm/x; head -c 1M /dev/zero >/workspace/x", receipt.CauseExited},
		{"disk over on a fast exit", small, "exec head -c 64M /dev/zero >/tmp/x", receipt.CauseDiskLimit},
		{"cpu, memory and output together", limited(func(l *policy.Limits) {
			l.CPUTimeMS, l.MemoryBytes, l.TerminalOutputBytes = 300, 64<<20, 100_000
		}), "cat /dev/zero & dd if=/dev/zero of=/dev/null bs=200M & while :; do :; done", "any"},
	}
	for _, place := range diskPlaces {
		tests = append(tests,
			test{"disk bytes in " + place, small, "head -c 64M /dev/zero >" + place + "/x; sleep 1000", receipt.CauseDiskLimit},
			test{"disk inodes in " + place, small, "cd " + place + "; i=0; while :; do i=$((i+1)); : >$i; done", receipt.CauseDiskLimit})
	}
	if testing.Short() {
		tests = slices.DeleteFunc(tests, func(x test) bool { return strings.Contains(x.name, " inodes ") && !strings.Contains(x.name, "/tmp") })
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			w, out, rec := sh(t, c.limits, c.script, "copy")
			r := w.receiptFor(rec)
			want := []string{c.cause}
			if c.cause == "any" {
				want = []string{receipt.CauseCPUTimeLimit, receipt.CauseMemoryLimit, receipt.CauseTerminalOutputLimit}
			}
			if !slices.Contains(want, r.TerminationCause) {
				t.Errorf("cause %s, want %v; output %q, observed %+v", r.TerminationCause, want, out[max(0, len(out)-300):], r.Observed)
			}
			if c.cause == receipt.CauseExited && *r.ExitCode != 0 {
				t.Errorf("exit code %d, output %q", *r.ExitCode, out)
			}
			overObserved(t, r)
		})
	}
}

// overObserved checks that what was observed proves the cause.
func overObserved(t *testing.T, r *receipt.Resource) {
	t.Helper()
	o, l := r.Observed, r.ConfiguredLimits
	ok := true
	switch r.TerminationCause {
	case receipt.CauseCPUTimeLimit:
		ok = o.CPUTimeMS >= l.CPUTimeMS
	case receipt.CauseWallTimeLimit:
		ok = o.WallTimeMS >= l.WallTimeMS
	case receipt.CauseTerminalOutputLimit:
		ok = o.TerminalOutputBytes > l.TerminalOutputBytes
	case receipt.CausePIDLimit:
		ok = o.PeakPIDs >= l.PIDs
	case receipt.CauseExited:
		ok = o.CPUTimeMS < l.CPUTimeMS && o.WallTimeMS < l.WallTimeMS && o.TerminalOutputBytes <= l.TerminalOutputBytes && o.DiskBytes < l.DiskBytes
	}
	if !ok {
		t.Errorf("cause %s, limits %+v, observed %+v", r.TerminationCause, l, o)
	}
}

// TestOutputLimitKeepsThePrefix reads what came before the limit, live and
// afterwards.
func TestOutputLimitKeepsThePrefix(t *testing.T) {
	w := newWorld(t, limited(func(l *policy.Limits) { l.TerminalOutputBytes = 50_000 }), "/bin/sh", "-c",
		"printf '%s' start; sleep 0.05; head -c 200000 /dev/zero | tr '\\0' x; sleep 1000")
	w.trust()
	out, rec := w.run()
	again := w.readAll(t.Context(), rec.SessionID)
	if !strings.HasPrefix(out, "startx") || len(out) > 50_000 || again != out {
		t.Errorf("%d bytes live, %d saved, beginning %q", len(out), len(again), out[:min(len(out), 10)])
	}
	if c := w.envelope(rec).Confinement.Transcript; c.Complete || c.Count <= 50_000 {
		t.Errorf("commitment %+v", c)
	}
}

// BenchmarkOvershoot reports by how much CPU and wall time were overrun: the
// goals are 20 ms times the cores, and 50 ms.
func BenchmarkOvershoot(b *testing.B) {
	for _, c := range []struct {
		name, script string
		limits       policy.Limits
	}{
		{"cpu", "for i in 1 2 3 4; do (while :; do :; done) & done; wait", limited(func(l *policy.Limits) { l.CPUTimeMS = 300 })},
		{"wall", "sleep 1000", limited(func(l *policy.Limits) { l.WallTimeMS = 300 })},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := newWorld(b, c.limits, "/bin/sh", "-c", c.script)
			w.trust()
			var worst, sum int64
			for b.Loop() {
				_, rec := w.run()
				r := w.receiptFor(rec)
				over := int64(r.Observed.CPUTimeMS) - 300
				if c.name == "wall" {
					over = int64(r.Observed.WallTimeMS) - 300
				}
				worst, sum = max(worst, over), sum+over
			}
			b.ReportMetric(float64(worst), "worst-ms")
			b.ReportMetric(float64(sum)/float64(b.N), "mean-ms")
		})
	}
}

// BenchmarkIdleMemory reports what an idle session costs: the resident memory
// of its monitor and init, shared pages counted by share (PSS) and in full
// (RSS). The goal is under 15 MiB.
func BenchmarkIdleMemory(b *testing.B) {
	w := newWorld(b, generous, "/bin/sleep", "1000")
	w.trust()
	var rss, pss float64
	for b.Loop() {
		rec, err := w.start(w.create())
		must(b, err)
		wait(b.Context(), 2*time.Second) // until it idles
		for _, p := range w.inventory().processes {
			dir, _, _ := strings.Cut(p, "/exe")
			r, s := resident(b, dir)
			rss, pss = rss+r, pss+s
		}
		_, err = w.Stop(b.Context(), "stop-"+rec.SessionID, rec.SessionID)
		must(b, err)
	}
	b.ReportMetric(rss/float64(b.N)/1024, "rss-MiB")
	b.ReportMetric(pss/float64(b.N)/1024, "pss-MiB")
}

func resident(t testing.TB, dir string) (rss, pss float64) {
	data, err := os.ReadFile(dir + "/smaps_rollup")
	must(t, err)
	for line := range strings.Lines(string(data)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "Rss: %f kB", &kib); n == 1 {
			rss = kib
		}
		if n, _ := fmt.Sscanf(line, "Pss: %f kB", &kib); n == 1 {
			pss = kib
		}
	}
	return rss, pss
}
