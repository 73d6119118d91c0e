package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"gloved.dev/rpc"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
	"gloved.dev/runtime"
	"gloved.dev/runtime/monitor"
)

// build makes a gloved of this tree that says it is version and, if protocol is not 0,
// whose gloved and monitors speak that version of their protocol.
func build(t *testing.T, version string, protocol int) string {
	t.Helper()
	dir := t.TempDir()
	args := []string{"build", "-o", filepath.Join(dir, "gloved"), "-ldflags", "-X gloved.dev/cmd/internal/version.Version=" + version}
	if protocol != 0 {
		// The go command takes the changed file in the place of the tree's.
		original, err := filepath.Abs("../../runtime/monitor/types.go")
		must(t, err)
		text, err := os.ReadFile(original)
		must(t, err)
		line := fmt.Sprintf("const ProtocolVersion = %d\n", monitor.ProtocolVersion)
		if strings.Count(string(text), line) != 1 {
			t.Fatalf("%s does not say %q", original, line)
		}
		changed := filepath.Join(dir, "types.go")
		must(t, os.WriteFile(changed, []byte(strings.Replace(string(text), line, fmt.Sprintf("const ProtocolVersion = %d\n", protocol), 1)), 0o600))
		overlay, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
		args = append(args, "-overlay", filepath.Join(dir, "overlay.json"))
	}
	if out, err := exec.Command("go", append(args, "gloved.dev/cmd/gloved")...).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "gloved")
}

// says checks which build answers.
func says(t *testing.T, c *client.Client, version string) {
	t.Helper()
	if got := c.Hello().Server.Version; got != version && !strings.HasPrefix(got, version+"+") {
		t.Fatalf("gloved %s answers, not %s", got, version)
	}
}

// executable is what a process runs, by content.
func executable(t *testing.T, pid int) (path string, digest string) {
	t.Helper()
	path = fmt.Sprintf("/proc/%d/exe", pid)
	out, err := exec.Command("sha256sum", path).Output()
	must(t, err)
	return path, strings.Fields(string(out))[0]
}

const talker = "echo up; while read l; do echo got $l; [ $l = bye ] && exit 7; done"

// TestUpgrade lets another build take over a running session, and then the first one
// come back: a client sees reconnections and nothing else.
func TestUpgrade(t *testing.T) {
	s := newSite(t, talker)
	builds := []string{build(t, "0.0.1", 0), build(t, "0.0.2", 0)}
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		for _, order := range [][]int{{0, 1, 0}, {1, 0}} {
			id := fmt.Sprintf("s-%d-%d", how, len(order))
			t.Run(id, func(t *testing.T) { s.upgrade(t, id, builds, order, how) })
		}
	}
	s.chained()
}

func (s *site) upgrade(t *testing.T, id string, builds []string, order []int, how syscall.Signal) {
	was := program
	defer func() { program = was }()
	var seen string
	var process, digest string
	var record wire.Session
	for step, n := range order {
		program = builds[n]
		version := fmt.Sprintf("0.0.%d", n+1)
		cmd := s.resident()
		f := newFollower()
		c := s.dial(client.Options{OnNote: f.note})
		says(t, c, version)
		s.trust(c)
		if step == 0 {
			s.start(c, id)
		}
		pid := s.monitorPID(id)
		path, runs := executable(t, pid)
		if step == 0 {
			process, digest = path, runs
			if _, ours := executable(t, cmd.Process.Pid); ours != digest {
				t.Errorf("the monitor runs %s, its gloved %s", digest, ours)
			}
		} else if _, ours := executable(t, cmd.Process.Pid); path != process || runs != digest || ours == digest && builds[n] != builds[order[0]] {
			t.Errorf("the monitor is %s running %s, was %s running %s; gloved runs %s", path, runs, process, digest, ours)
		}
		f.follow(t, c, id, int64(len(seen)))
		word := fmt.Sprintf("word%d", step)
		_, err := c.WriteStdin(s.ctx(soakPatience), id, []byte(word+"\n"))
		must(t, err)
		f.has(t, "got "+word+"\r\n")
		now, err := c.SessionStatus(s.ctx(soakPatience), id)
		must(t, err)
		// The same requests again bring the same session, whichever build made it.
		again, err := c.StartSession(s.ctx(soakPatience), "start-"+id, wire.StartAuthorization{SchemaVersion: 1, AuthorizationID: "auth-" + id, SessionID: id,
			ControllerPlanDigest: now.ControllerPlanDigest, PlanContentDigest: now.PlanContentDigest,
			ApprovedAtMS: now.CreatedAtMS, ExpiresAtMS: now.CreatedAtMS + 100_000})
		if err != nil || *again != *now || now.State != "running" || step > 0 && *now != record {
			t.Errorf("asked again, the session is %+v, %v; status %+v, before %+v", again, err, now, record)
		}
		record = *now
		if step == len(order)-1 {
			_, err := c.WriteStdin(s.ctx(soakPatience), id, []byte("bye\n"))
			must(t, err)
			if e := f.end(t); e.State != "exited" || e.ExitCode == nil || *e.ExitCode != 7 {
				t.Errorf("the end is %+v", e)
			}
			seen += f.text()
			if saved, _ := s.until(c, id, 0, "\x00"); saved != seen || strings.Count(saved, "up\r\n") != 1 {
				t.Errorf("the transcript is %q, followed %q", saved, seen)
			}
			s.trust(c)
			must(t, c.Close())
			must(t, cmd.Process.Signal(syscall.SIGTERM))
			must(t, cmd.Wait())
			return
		}
		must(t, cmd.Process.Signal(how))
		<-c.Done()
		_ = cmd.Wait() // it was asked to end
		seen += f.text()
	}
}

func (f *follower) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return string(f.out)
}

// has waits until the follower's output ends with text.
func (f *follower) has(t *testing.T, text string) {
	t.Helper()
	eventually(t, func() error {
		if got := f.text(); !strings.HasSuffix(got, text) {
			return fmt.Errorf("followed %q, want %q at its end", got, text)
		}
		return nil
	})
}

// chained checks, over a fresh gloved, that every session has one receipt.
func (s *site) chained() {
	s.t.Helper()
	c := s.stdio(client.Options{})
	list, err := c.ListSessions(s.ctx(soakPatience), &wire.ListSessionsParams{})
	must(s.t, err)
	page, err := c.PageReceipts(s.ctx(soakPatience), wire.Anchor{KeyID: s.head.KeyID, HeadHMAC: strings.Repeat("0", 64)}, 1000)
	must(s.t, err)
	var ids []string
	for _, raw := range page.Envelopes {
		var e struct {
			SessionID string `json:"session_id"`
		}
		must(s.t, json.Unmarshal(raw, &e))
		ids = append(ids, e.SessionID)
	}
	slices.Sort(ids)
	var want []string
	for _, rec := range list.Sessions {
		want = append(want, rec.SessionID)
	}
	slices.Sort(want)
	if !slices.Equal(ids, want) || len(ids) == 0 {
		s.t.Errorf("receipts of %q, sessions %q", ids, want)
	}
	must(s.t, c.Close())
}

// TestUpgradeAcrossProtocols has a build with another monitor protocol start a session.
// Ours refuses to take it over, says so, touches nothing, and starts others meanwhile. The
// other build comes back and goes on with it; its end becomes a receipt of ours.
func TestUpgradeAcrossProtocols(t *testing.T) {
	const id = "s-1"
	s := newSite(t, talker)
	ours, other := program, build(t, "0.0.3", monitor.ProtocolVersion+1)
	defer func() { program = ours }()

	program = other
	c := s.stdio(client.Options{})
	s.trust(c)
	s.start(c, id)
	s.until(c, id, 0, "up\r\n")
	must(t, c.Close())
	pid := s.monitorPID(id)

	program = ours
	c = s.stdio(client.Options{})
	s.trust(c)
	s.refusesForeign(t, c, id)
	s.start(c, "s-2") // what is accounted for keeps nobody from starting
	must(t, c.Close())
	if now := s.monitorPID(id); now != pid {
		t.Fatalf("the monitor is %d, was %d", now, pid)
	}

	program = other
	c = s.stdio(client.Options{})
	s.trust(c)
	_, err := c.WriteStdin(s.ctx(soakPatience), id, []byte("still-here\n"))
	must(t, err)
	if out, _ := s.until(c, id, 0, "got still-here\r\n"); !strings.HasSuffix(out, "got still-here\r\n") {
		t.Errorf("the other build reads %q", out)
	}
	s.refusesForeign(t, c, "s-2") // a downgrade is the same
	must(t, c.Close())

	program = ours
	c = s.stdio(client.Options{})
	s.trust(c)
	s.refusesForeign(t, c, id)
	s.killHarness(t, id)
	eventually(t, func() error {
		rec, err := c.SessionStatus(s.ctx(soakPatience), id)
		if err != nil || rec.State != "exited" || rec.TerminationCause != "signaled" || rec.Receipt == nil || rec.Issue != "" {
			return fmt.Errorf("the session is %+v, %v", rec, err)
		}
		return nil
	})
	if out, _ := s.until(c, id, 0, "\x00"); !strings.Contains(out, "got still-here\r\n") {
		t.Errorf("its transcript is %q", out)
	}
	_, err = c.StopSession(s.ctx(soakPatience), "stop", "s-2")
	must(t, err)
	s.trust(c)
	h, err := c.Health(s.ctx(soakPatience))
	must(t, err)
	if i := slices.IndexFunc(h.Components, func(p wire.ComponentHealth) bool { return p.Name == "runtime" }); h.Components[i].Code != "" {
		t.Errorf("health is %+v", h.Components[i])
	}
	for _, one := range []string{id, "s-2"} {
		_, err := c.CleanupSession(s.ctx(soakPatience), one, client.WithKey("clean-"+one))
		must(t, err)
	}
	must(t, c.Close())
	s.chained()
}

// refusesForeign checks what is said of a session of another build, and that it runs on.
func (s *site) refusesForeign(t *testing.T, c *client.Client, id string) {
	t.Helper()
	pid := s.monitorPID(id)
	ctx := s.ctx(soakPatience)
	_, attach := c.Attach(ctx, &wire.AttachParams{SessionID: id, MaxBytes: 10})
	_, write := c.WriteStdin(ctx, id, []byte("x\n"))
	_, stop := c.StopSession(ctx, "stop-"+strconv.Itoa(s.n), id)
	for name, err := range map[string]error{"attach": attach, "write": write, "stop": stop} {
		var refused *rpc.Error
		if !errors.As(err, &refused) {
			t.Errorf("%s of a session of another build: %v", name, err)
			continue
		}
		for _, part := range []string{`"1"`, `"2"`, "the gloved build that started it"} {
			if !strings.Contains(refused.Message, part) {
				t.Errorf("%s says %q, nothing of %s", name, refused.Message, part)
			}
		}
	}
	rec, err := c.SessionStatus(ctx, id)
	if err != nil || rec.State != "running" || rec.Issue != runtime.IssueVersion {
		t.Errorf("the session is %+v, %v", rec, err)
	}
	h, err := c.Health(ctx)
	must(t, err)
	if i := slices.IndexFunc(h.Components, func(p wire.ComponentHealth) bool { return p.Name == "runtime" }); i < 0 || h.Components[i].Code != runtime.IssueVersion {
		t.Errorf("health is %+v", h.Components)
	}
	if now := s.monitorPID(id); now != pid {
		t.Errorf("the monitor is %d, was %d", now, pid)
	}
}

// groupOf is the control group that a session's records name.
func groupOf(store []byte, id string) (group string) {
	for line := range bytes.Lines(store) {
		if !bytes.Contains(line, []byte(`"session_id":"`+id+`"`)) {
			continue
		}
		if found := regexp.MustCompile(`glove-session-[0-9a-f]{12}-[0-9a-f]{16}`).Find(line); found != nil {
			group = string(found)
		}
	}
	return group
}

// killHarness kills the shell that is the session's command.
func (s *site) killHarness(t *testing.T, id string) {
	t.Helper()
	store, err := os.ReadFile(s.vars["STORE"])
	must(t, err)
	group := groupOf(store, id)
	if group == "" {
		t.Fatalf("the store names no control group of %s", id)
	}
	paths, err := filepath.Glob("/proc/[0-9]*/cgroup")
	must(t, err)
	killed := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), group) {
			continue
		}
		command, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err != nil || !strings.HasPrefix(string(command), "sh\x00-c\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		must(t, err)
		must(t, syscall.Kill(pid, syscall.SIGKILL))
		killed++
	}
	if killed != 1 {
		t.Fatalf("%d commands of the session were killed", killed)
	}
}
