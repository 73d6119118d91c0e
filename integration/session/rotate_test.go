package session

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"gloved.dev/journal"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
)

// TestRotateUnderASession rotates the journals under a session that runs: it goes
// on, through a kill of gloved too, ends, and has its receipt in the one chain.
func TestRotateUnderASession(t *testing.T) {
	s := newSite(t, "read l; echo told $l; exit 3")
	first := s.resident()
	c := s.dial(client.Options{})
	s.trust(c)
	ctx := s.ctx(2 * time.Minute)
	tell := func(c *client.Client, id string) {
		t.Helper()
		_, err := c.WriteStdin(ctx, id, []byte("x\n"))
		must(t, err)
		s.until(c, id, 0, "no such end") // to the end of the stream
	}
	for n := range 3 {
		id := fmt.Sprint("done-", n)
		s.start(c, id)
		tell(c, id)
		s.exited(c, id)
	}
	s.start(c, "runs")
	s.start(c, "unclean")
	tell(c, "unclean")
	s.exited(c, "unclean")
	for n := range 3 {
		_, err := c.CleanupSession(ctx, fmt.Sprint("done-", n), client.WithKey(s.key("clean")))
		must(t, err)
	}
	before := s.rotated(c, 0, 0) // nothing of these is acknowledged
	s.trust(c)
	if got := s.rotated(c, 4, 3); got == before {
		t.Error("nothing was rotated")
	}
	// gloved dies; the next one reads the new journals and adopts the session.
	must(t, first.Process.Kill())
	_ = first.Wait()
	s.resident()
	c = s.dial(client.Options{})
	s.trust(c)
	tell(c, "runs")
	if end := s.exited(c, "runs"); end.Receipt == nil || end.Receipt.Sequence != 5 || *end.ExitCode != 3 {
		t.Errorf("the end of what ran: %+v", end)
	}
	s.trust(c)
	if s.head.Sequence != 5 {
		t.Errorf("the chain ends at %d", s.head.Sequence)
	}
	if out, _ := s.until(c, "unclean", 0, "no such end"); out == "" {
		t.Error("the transcript of a session that was not cleaned up is gone")
	}
	if _, err := c.CleanupSession(ctx, "unclean", client.WithKey(s.key("clean"))); err != nil {
		t.Error(err)
	}
	s.left(c, "runs")
	s.rotated(c, 1, 2)
	for _, path := range []string{s.vars["STORE"], s.vars["JOURNAL"]} {
		if v, err := journal.VerifyFile(path, journal.VerifyOptions{}); err != nil || v.Status != journal.StatusClean || len(v.Archives) != 2 {
			t.Errorf("%s: %+v %v", filepath.Base(path), v, err)
		}
	}
}

// exited waits until the session's end is on record.
func (s *site) exited(c *client.Client, id string) *wire.Session {
	s.t.Helper()
	for ctx := s.ctx(time.Minute); ; {
		rec, err := c.SessionStatus(ctx, id)
		must(s.t, err)
		if rec.State == "exited" {
			return rec
		}
	}
}

// rotated asks for a rotation, which must archive that many receipts and sessions,
// and returns the archives' names.
func (s *site) rotated(c *client.Client, receipts, sessions int64) string {
	s.t.Helper()
	done, err := c.RotateJournals(s.ctx(time.Minute), s.key("rotate"), false)
	must(s.t, err)
	r, p := done.Journals[0], done.Journals[1]
	if r.Archived != receipts || p.Archived != sessions || r.Failure+p.Failure != "" {
		s.t.Errorf("%d receipts and %d sessions should be archived: %+v", receipts, sessions, done.Journals)
	}
	return r.Archive + p.Archive
}
