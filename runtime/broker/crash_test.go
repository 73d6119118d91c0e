package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The environment of a process that plays a broker until it is killed.
const (
	crashRoot = "BROKER_TEST_ROOT" // the site
	crashStep = "BROKER_TEST_STEP" // the step at which it kills itself
	crashNth  = "BROKER_TEST_NTH"  // which passing of that step, from 1
	crashKind = "BROKER_TEST_KIND" // the proposal
)

func TestMain(m *testing.M) {
	if root := os.Getenv(crashRoot); root != "" {
		playBroker(root)
		return
	}
	os.Exit(m.Run())
}

// kinds are proposals of each kind of operation, two of them so that there is a half-way.
func kinds() map[string][]op {
	return map[string][]op{
		KindCreate:  {create("docs/new-a", "A"), create("second/new-b", "B")},
		KindReplace: {replace("docs/a", "old a", "new a"), replace("second/b", "old b", "new b")},
		KindDelete:  {remove("docs/a", "old a"), remove("second/b", "old b")},
		KindMove:    {move("docs/a", "docs/moved", "old a"), move("second/b", "docs/moved-b", "old b")},
		"every":     {create("docs/new", "N"), replace("docs/a", "old a", "new a"), remove("second/b", "old b"), move("docs/c", "second/c", "old c")},
	}
}

func crashSite(t testing.TB, root string) *site {
	s := openSite(t, root)
	s.file("docs/a", "old a")
	s.file("docs/c", "old c")
	s.file("second/b", "old b")
	return s
}

// playBroker applies a proposal and kills itself at a step, as a power cut would: no deferred
// function runs.
func playBroker(root string) {
	t := &testing.T{}
	s := openSite(t, root)
	n, _ := strconv.Atoi(os.Getenv(crashNth))
	step := Step(os.Getenv(crashStep))
	s.b.step = func(at Step) error {
		if at == step {
			if n--; n == 0 {
				_ = unix.Kill(os.Getpid(), unix.SIGKILL)
				select {}
			}
		}
		return nil
	}
	ops, ok := kinds()[os.Getenv(crashKind)]
	if !ok {
		os.Exit(3)
	}
	_, err := s.b.Apply(context.Background(), proposal(t, ops...)) //nolint:usetesting // there is no test in this process
	if r := AsRefusal(err, ""); err != nil {
		os.Stdout.WriteString(r.Code)
		os.Exit(1)
	}
	os.Stdout.WriteString("ok")
	os.Exit(0)
}

// play runs playBroker in a process of its own and reports whether it was killed, and what it said.
func play(t testing.TB, root, kind string, step Step, nth int) (killed bool, said string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), crashRoot+"="+root, crashKind+"="+kind, crashStep+"="+string(step), crashNth+"="+strconv.Itoa(nth))
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return false, err.Error()
	}
	if exit != nil && exit.ExitCode() > 1 {
		return false, fmt.Sprintf("the player failed: %v %s %s", err, out, exit.Stderr)
	}
	return exit != nil && exit.ExitCode() == -1, string(out)
}

// TestReq091KilledAtEveryStep kills a broker at every step of every kind of operation. Whatever the
// moment, recover must name the truth, no content may be lost, and the next apply must leave the log
// saying what the workspace shows.
func TestReq091KilledAtEveryStep(t *testing.T) {
	for kind, ops := range kinds() {
		for _, step := range Steps() {
			nths := []int{1}
			if step == StepMoved {
				nths = nil
				for n := range ops {
					nths = append(nths, n+1)
				}
			}
			for _, nth := range nths {
				t.Run(kind+"/"+string(step)+strconv.Itoa(nth), func(t *testing.T) { killAt(t, kind, step, nth) })
			}
		}
	}
}

func killAt(t *testing.T, kind string, step Step, nth int) {
	root := t.TempDir()
	s := crashSite(t, root)
	before := s.tree()
	if killed, said := play(t, root, kind, step, nth); !killed {
		t.Fatalf("step %s was not passed: %s", step, said)
	}
	after := afterOf(t, kind)
	now := s.tree()
	truth := StateMixed
	switch {
	case maps.Equal(now, before):
		truth = StateBefore
	case maps.Equal(now, after):
		truth = StateAfter
	}
	report, err := s.b.Recover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if report.Journal == Valid && report.State != truth {
		t.Fatalf("recover says %s; the workspace is %s", report.State, truth)
	}
	if report.Journal == Absent && report.State != StateNone || report.Journal == Unreadable {
		t.Fatalf("recover says %+v", report)
	}
	if report.Lock == Foreign {
		t.Fatalf("the lock is not known as a broker's: %+v", report)
	}
	noLoss(t, s, kind)
	started := s.gate.count(t, "started")
	// The next apply, of something else, settles what was left.
	r := s.apply(create("docs/unrelated", "u"))
	if truth == StateMixed {
		want(t, r, CodeCustodyContended, "workspace-commit-unknown")
		if n := s.gate.count(t, string(Indeterminate)); n != started {
			t.Fatalf("%d of %d legs are indeterminate", n, started)
		}
		if len(s.left()) != 2 {
			t.Fatalf("journal and lock were not kept: %v", s.left())
		}
		return
	}
	applied(t, r)
	if len(s.left()) != 0 {
		t.Fatalf("left behind: %v", s.left())
	}
	completed, failed := s.gate.count(t, string(Completed))-1, s.gate.count(t, string(Failed))
	switch {
	case step == StepStarted: // no lock yet: the starts dangle, and a person resolves them
		if completed != 0 || failed != 0 {
			t.Fatalf("%d completed, %d failed after a crash before the lock", completed, failed)
		}
	case truth == StateAfter && (completed != started || failed != 0),
		truth == StateBefore && (completed != 0 || failed != started):
		t.Fatalf("workspace %s, but %d completed and %d failed of %d", truth, completed, failed, started)
	}
}

// afterOf applies the proposal without a crash and describes the workspace.
func afterOf(t *testing.T, kind string) map[string]string {
	s := crashSite(t, t.TempDir())
	applied(t, s.apply(kinds()[kind]...))
	return s.tree()
}

// noLoss checks that every content, old and new, is somewhere in the workspace or the staging
// directory once a journal exists, and every old one before.
func noLoss(t *testing.T, s *site, kind string) {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(s.ws, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == journalName {
			return err
		}
		data, err := os.ReadFile(path)
		all.WriteString(string(data) + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	settled := s.gate.count(t, string(Completed))+s.gate.count(t, string(Failed)) > 0
	for _, o := range kinds()[kind] {
		old := map[string]string{sum("old a"): "old a", sum("old b"): "old b", sum("old c"): "old c"}[o["expected_before_sha256"]]
		if old != "" && !settled && !strings.Contains(all.String(), old) {
			t.Fatalf("the old content %q is lost", old)
		}
	}
}

// TestReq075TwoBrokersRace runs two processes on one proposal: exactly one applies it.
func TestReq075TwoBrokersRace(t *testing.T) {
	rounds := 50
	if testing.Short() {
		rounds = 5
	}
	for range rounds {
		root := t.TempDir()
		s := crashSite(t, root)
		said := make(chan string, 2)
		for range 2 {
			go func() {
				_, out := play(t, root, "every", "", 0)
				said <- out
			}()
		}
		first, second := <-said, <-said
		if (first == "ok") == (second == "ok") {
			t.Fatalf("%q and %q", first, second)
		}
		if n := s.gate.count(t, string(Completed)); n != 2 {
			t.Fatalf("%d legs completed", n)
		}
		if got := s.left(); len(got) != 0 {
			t.Fatalf("left behind: %v", got)
		}
	}
}
