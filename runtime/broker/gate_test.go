package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A fileGate is a Gate for tests whose log is a file of lines, so that it outlives a killed
// process. What the real gate does with policies and grants is a matter of paths here: below
// "manual" a person must agree (a line "grant KEY"), below "people" nobody else may.
type fileGate struct {
	path string
	// refuseStart refuses the start of the leg of this class.
	refuseStart string
	// classes counts Classify calls for a path.
	onClassify func(path string)
	failOpen   error
}

type line struct {
	Event string `json:"event"`
	Key   string `json:"key"`
	Task  string `json:"task,omitempty"`
}

var testPolicy = strings.Repeat("a", 64)

func (g *fileGate) Open(context.Context) (Reading, error) {
	if g.failOpen != nil {
		return nil, g.failOpen
	}
	return g, nil
}

func (g *fileGate) PolicySHA256() string { return testPolicy }

func (g *fileGate) Classify(path string) Class {
	if g.onClassify != nil {
		g.onClassify(path)
	}
	switch first, _, _ := strings.Cut(path, "/"); first {
	case "manual":
		return Class{Name: "files.write.manual"}
	case "second":
		return Class{Name: "files.write.second"}
	case "people":
		return Class{Name: "policy.edit", HumanOnly: true}
	}
	return Class{Name: "files.write.workspace"}
}

// locked runs f on the lines under a lock of the gate's own, and appends what it returns.
func (g *fileGate) locked(f func([]line) ([]line, error)) error {
	file, err := os.OpenFile(g.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	var have []line
	for s := bufio.NewScanner(file); s.Scan(); {
		var l line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			return err
		}
		have = append(have, l)
	}
	more, err := f(have)
	if err != nil {
		return err
	}
	for _, l := range more {
		raw, err := json.Marshal(l)
		if err != nil {
			return err
		}
		if _, err := file.Write(append(raw, '\n')); err != nil {
			return err
		}
	}
	return file.Sync()
}

func (g *fileGate) lines(t testing.TB) []line {
	t.Helper()
	var all []line
	if err := g.locked(func(have []line) ([]line, error) { all = have; return nil, nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// count counts lines of an event.
func (g *fileGate) count(t testing.TB, event string) (n int) {
	t.Helper()
	for _, l := range g.lines(t) {
		if l.Event == event {
			n++
		}
	}
	return n
}

func (g *fileGate) add(t testing.TB, event, key string) {
	t.Helper()
	if err := g.locked(func([]line) ([]line, error) { return []line{{Event: event, Key: key}}, nil }); err != nil {
		t.Fatal(err)
	}
}

func has(lines []line, event, key string) bool {
	for _, l := range lines {
		if l.Event == event && l.Key == key {
			return true
		}
	}
	return false
}

func status(lines []line, key string) LegStatus {
	s := LegStatus{Started: has(lines, "started", key), Reconciled: has(lines, "reconciled", key)}
	for _, o := range []Outcome{Completed, Failed, Indeterminate} {
		if has(lines, string(o), key) {
			s.Outcome = o
		}
	}
	return s
}

func (g *fileGate) History(task Task) (a Attempts, err error) {
	err = g.locked(func(have []line) ([]line, error) {
		for ; ; a.Next++ {
			started := false
			for _, leg := range task.with(a.Next).Legs() {
				s := status(have, leg.Key)
				started = started || s.Started
				switch {
				case s.Started && s.Outcome == "":
					a.Spent = SpentDangling
				case s.Outcome == Completed:
					a.Spent = SpentApplied
				case s.Outcome == Indeterminate:
					a.Spent = SpentIndeterminate
				}
			}
			if !started || a.Spent != "" {
				return nil, nil
			}
		}
	})
	return a, err
}

func (g *fileGate) Register(_ context.Context, task Task, _ string) error {
	return g.locked(func(have []line) ([]line, error) {
		if has(have, "registered", task.ID()) {
			return nil, nil
		}
		return []line{{Event: "registered", Key: task.ID()}}, nil
	})
}

func (g *fileGate) Authorise(_ context.Context, leg Leg, payload []byte) (answer Authorisation, err error) {
	err = g.locked(func(have []line) ([]line, error) {
		if leg.Class != "files.write.manual" || has(have, "granted", leg.Key) {
			return nil, nil
		}
		answer = Waiting
		if has(have, "requested", leg.Key) {
			return nil, nil
		}
		return []line{{Event: "requested", Key: leg.Key}}, nil
	})
	return answer, err
}

func (g *fileGate) Start(_ context.Context, leg Leg) error {
	return g.locked(func(have []line) ([]line, error) {
		if has(have, "started", leg.Key) {
			return nil, refuse(CodeStartRefused, "already-executed", "started before")
		}
		if leg.Class == g.refuseStart {
			return nil, refuse(CodeStartRefused, "token-mismatch", "refused by the test")
		}
		return []line{{Event: "started", Key: leg.Key, Task: leg.Task}}, nil
	})
}

func (g *fileGate) Outcome(_ context.Context, leg Leg, outcome Outcome) error {
	return g.locked(func(have []line) ([]line, error) {
		if s := status(have, leg.Key); s.Outcome != "" {
			return nil, nil
		}
		return []line{{Event: string(outcome), Key: leg.Key}}, nil
	})
}

func (g *fileGate) Status(_ context.Context, leg Leg) (s LegStatus, err error) {
	err = g.locked(func(have []line) ([]line, error) { s = status(have, leg.Key); return nil, nil })
	return s, err
}

// A site is a workspace with a broker and its gate.
type site struct {
	t    testing.TB
	root string
	ws   string
	gate *fileGate
	b    *Broker
}

func newSite(t testing.TB) *site {
	t.Helper()
	root := t.TempDir()
	return openSite(t, root)
}

// openSite makes a site in root, or opens the one that is there.
func openSite(t testing.TB, root string) *site {
	t.Helper()
	s := &site{t: t, root: root, ws: filepath.Join(root, "ws"), gate: &fileGate{path: filepath.Join(root, "log")}}
	if err := os.MkdirAll(s.ws, 0o755); err != nil {
		t.Fatal(err)
	}
	b, err := New(Options{Instance: "test", Workspace: s.ws, Evidence: filepath.Join(root, "evidence"), Gate: s.gate})
	if err != nil {
		t.Fatal(err)
	}
	s.b = b
	return s
}

// file writes a file of the workspace with its directories.
func (s *site) file(path, content string) {
	s.t.Helper()
	full := filepath.Join(s.ws, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) dir(path string) {
	s.t.Helper()
	if err := os.MkdirAll(filepath.Join(s.ws, path), 0o755); err != nil {
		s.t.Fatal(err)
	}
}

// content reads a file of the workspace; "" with false is absence.
func (s *site) content(path string) (string, bool) {
	data, err := os.ReadFile(filepath.Join(s.ws, path))
	return string(data), err == nil
}

// tree describes everything in the workspace but the broker's own: type, mode and content.
func (s *site) tree() map[string]string {
	s.t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(s.ws, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(s.ws, path)
		if rel == TransactionDir {
			return filepath.SkipDir
		}
		if rel == LockName {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += " " + string(data)
		}
		found[rel] = text
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return found
}

// left lists which of the broker's two names are in the workspace.
func (s *site) left() (names []string) {
	for _, n := range []string{LockName, TransactionDir} {
		if _, err := os.Lstat(filepath.Join(s.ws, n)); err == nil {
			names = append(names, n)
		}
	}
	return names
}
