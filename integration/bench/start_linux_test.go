package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"gloved.dev/internal/require"
)

const startRounds = 30

// BenchmarkStart compares the way from start_session to a program's first
// instruction, and to the receipt of /bin/true, with what bwrap and runc need to
// do the like. Ours includes what theirs do not do: the durable records, the
// limits, the self-probe, a terminal, a receipt.
func BenchmarkStart(b *testing.B) {
	shared := resolved(b, b.TempDir())
	must(b, os.Chmod(shared, 0o755)) // the session's user reads the program
	stamp := writeStamp(b, shared)
	d := serve(b, map[string][]string{"stamp": {stamp}, "true": {"/bin/true"}})
	goals := []goal{{against: "bwrap", ratio: 2.5}, {against: "runc", ratio: 0.6}}

	first := append([]contestant{{"gloved", func() (time.Duration, error) { return d.firstInstruction() }}}, rivals(b, shared, stamp, true)...)
	whole := append([]contestant{{"gloved", func() (time.Duration, error) { return d.toReceipt() }}}, rivals(b, shared, "/bin/true", false)...)
	for b.Loop() {
		report(b, "start to first instruction", compete(b, startRounds, first...), milliseconds, "ms", goals...)
		report(b, "start of /bin/true to its receipt (theirs: to its exit)", compete(b, startRounds, whole...), milliseconds, "ms", goals...)
	}
}

func (d *daemon) firstInstruction() (time.Duration, error) {
	a, err := d.create("stamp")
	if err != nil {
		return 0, err
	}
	from := monotonic()
	if err := d.start(a); err != nil {
		return 0, err
	}
	if err := d.follow(a.SessionID); err != nil {
		return 0, err
	}
	if err := d.await(a.SessionID); err != nil {
		return 0, err
	}
	out, err := d.output(a.SessionID)
	if err != nil {
		return 0, err
	}
	to, err := stamped(out)
	if err != nil {
		return 0, err
	}
	return to - from, d.forget(a.SessionID)
}

func (d *daemon) toReceipt() (time.Duration, error) {
	a, err := d.create("true")
	if err != nil {
		return 0, err
	}
	from := time.Now()
	if err := d.start(a); err != nil {
		return 0, err
	}
	if err := d.follow(a.SessionID); err != nil {
		return 0, err
	}
	if err := d.await(a.SessionID); err != nil {
		return 0, err
	}
	took := time.Since(from)
	return took, d.forget(a.SessionID)
}

// rivals are bwrap and runc, where they are installed and work.
func rivals(b *testing.B, dir, program string, stamps bool) []contestant {
	b.Helper()
	bundle := newBundle(b, dir, program)
	n := 0
	var all []contestant
	for _, r := range []struct {
		name    string
		command func() *exec.Cmd
	}{
		{"bwrap", func() *exec.Cmd { return exec.Command("bwrap", "--unshare-all", "--ro-bind", "/", "/", program) }},
		{"runc", func() *exec.Cmd {
			n++
			return exec.Command("runc", "run", "--bundle", bundle, fmt.Sprintf("glove-bench-%d-%s-%d", os.Getpid(), filepath.Base(program), n))
		}},
	} {
		c := contestant{r.name, func() (time.Duration, error) { return timed(r.command(), stamps) }}
		if _, err := c.turn(); err != nil {
			// One rival's absence is no reason not to compare with the other.
			fmt.Printf("\n%s is left out: %v\n", r.name, err)
			continue
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		require.Skip(b, "neither bwrap nor runc works here; install bubblewrap and runc")
	}
	return all
}

// timed runs a command to its end, or to the instant it stamped.
func timed(cmd *exec.Cmd, stamps bool) (time.Duration, error) {
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	clock, from := monotonic(), time.Now()
	err := cmd.Run()
	took := time.Since(from)
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, bytes.TrimSpace(complaint.Bytes()))
	}
	if !stamps {
		return took, nil
	}
	to, err := stamped(out.Bytes())
	return to - clock, err
}

// newBundle makes the smallest OCI bundle that runs program: runc's own default
// configuration without a terminal, and the system's directories.
func newBundle(b *testing.B, dir, program string) string {
	b.Helper()
	bundle := filepath.Join(dir, "bundle-"+filepath.Base(program))
	must(b, os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o755))
	if err := exec.Command("runc", "spec", "--bundle", bundle).Run(); err != nil {
		return bundle // running it will say why
	}
	path := filepath.Join(bundle, "config.json")
	raw, err := os.ReadFile(path)
	must(b, err)
	var config map[string]any
	must(b, json.Unmarshal(raw, &config))
	process, ok := config["process"].(map[string]any)
	mounts, ok2 := config["mounts"].([]any)
	if !ok || !ok2 {
		b.Fatal("runc spec made no configuration")
	}
	process["terminal"], process["args"] = false, []string{program}
	for _, p := range []string{"/usr", "/bin", "/lib", "/lib64", program} {
		if _, err := os.Stat(p); err == nil {
			mounts = append(mounts, map[string]any{"destination": p, "source": p, "type": "bind", "options": []string{"rbind", "ro"}})
		}
	}
	config["mounts"] = mounts
	raw, err = json.Marshal(config)
	must(b, err)
	must(b, os.WriteFile(path, raw, 0o644))
	return bundle
}
