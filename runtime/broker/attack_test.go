package broker

import (
	"fmt"
	"os"
	"testing"

	"gloved.dev/runtime/gate"
)

// overwrite puts other bytes of the same number into a file, in place, and gives it its old times
// back: only the content can tell.
func overwrite(path, text string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		return err
	}
	return os.Chtimes(path, info.ModTime(), info.ModTime())
}

// TestReq089ContentChangedBeforeTheMove: bytes that another program puts into a file after the last
// look under the lock are neither what was granted away nor lost.
func TestReq089ContentChangedBeforeTheMove(t *testing.T) {
	for name, change := range map[string]op{
		"replace": replace("docs/a", "alpha", "after"), "delete": remove("docs/a", "alpha"), "move": move("docs/a", "docs/b", "alpha"),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.dir("docs")
			s.file("docs/a", "alpha")
			s.at(StepJournal, 1, func() error { return overwrite(s.path("docs/a"), "ALPHA") })
			want(t, s.apply(change), CodeCommitUnknown, "")
			if got, _ := s.content("docs/a"); got != "ALPHA" {
				t.Fatalf("the foreign bytes became %q", got)
			}
		})
	}
}

// TestReq089LinkedBeforeTheMove: a second name for the file is noticed too.
func TestReq089LinkedBeforeTheMove(t *testing.T) {
	s := newSite(t)
	s.file("a", "alpha")
	s.at(StepJournal, 1, func() error { return os.Link(s.path("a"), s.root+"/other") })
	if r := s.apply(remove("a", "alpha")); r == nil {
		t.Fatal("applied")
	}
	if got, _ := s.content("a"); got != "alpha" {
		t.Fatalf("%q", got)
	}
}

// TestFloodOfProposals: an agent that thinks up one change after another neither fills the queue
// without bound nor makes the log grow once it is full.
func TestFloodOfProposals(t *testing.T) {
	g := newGatedSite(t, flooredPolicy)
	for i := range gate.MaxBrokerQuestions {
		want(t, g.apply(create(fmt.Sprint("f", i), "x")), CodeApprovalRequired, "")
	}
	size := func() int64 {
		info, err := os.Stat(g.real.Log().Path())
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	for i := range 3 {
		want(t, g.apply(create(fmt.Sprint("more", i), "x")), CodeRequestRefused, gate.CodeQueueFull)
	}
	if after := size(); after != before {
		t.Fatalf("the log grew by %d bytes", after-before)
	}
	want(t, g.apply(create("f0", "x")), CodeApprovalRequired, "") // what waits still waits
}
