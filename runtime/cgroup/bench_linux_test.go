package cgroup

import (
	"os/exec"
	"testing"
	"time"

	"gloved.dev/internal/require"
)

// BenchmarkOvershoot reports by how much CPU time runs over its limit, per core.
func BenchmarkOvershoot(b *testing.B) {
	h, err := Detect()
	if err != nil {
		require.Skip(b, "no control groups: "+err.Error())
	}
	defer h.Close()
	const limit = 200 * time.Millisecond
	var worst time.Duration
	for b.Loop() {
		worst = max(worst, overshoot(b, h, limit))
	}
	b.ReportMetric(float64(worst.Microseconds())/1000/float64(onlineCPUs()), "worst-ms/core")
}

func overshoot(b *testing.B, h *Host, limit time.Duration) time.Duration {
	g, err := h.Create("glove-test-overshoot", wide)
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	w, err := Watch(b.Context(), g, WatchConfig{CPULimit: limit}, func(Cause) { _ = g.Kill() })
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{helperEnv + "=spin"}
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	if err := g.Add(cmd.Process.Pid); err != nil {
		b.Fatal(err)
	}
	in.Close()
	<-w.Done()
	_ = cmd.Wait()
	u, err := g.Usage()
	if err != nil {
		b.Fatal(err)
	}
	if err := g.Destroy(b.Context()); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.CPUMicros)*time.Microsecond - limit
}
