package monitor

import (
	"errors"
	"os"
	"testing"
	"time"

	"gloved.dev/internal/require"
)

// TestMain plays a monitor where the tests start one.
func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// ready returns Spares with a spare in it.
func ready(t *testing.T) (*Spares, *blank) {
	t.Helper()
	require.Root(t)
	s := &Spares{UIDRange: DefaultUIDRange}
	t.Cleanup(s.Close)
	s.refill()
	if s.spare == nil {
		t.Fatal("no spare was made")
	}
	return s, s.spare
}

func TestSpareIsTakenOnce(t *testing.T) {
	s, b := ready(t)
	if got := s.take(); got != b {
		t.Fatalf("took %p, want %p", got, b)
	}
	defer b.Kill()
	if got := s.take(); got != nil {
		t.Error("the same spare was given twice")
	}
}

func TestSpareOfOtherMountsIsNotUsed(t *testing.T) {
	s, b := ready(t)
	b.mounts = append(b.mounts, "something was mounted since\n"...)
	if s.take() != nil {
		t.Error("a spare with other mounts was used")
	}
	if !b.isGone() {
		t.Error("it was left running")
	}
}

func TestDeadSpareIsNotUsed(t *testing.T) {
	s, b := ready(t)
	b.kill()
	<-b.gone
	if s.take() != nil {
		t.Error("a dead spare was used")
	}
}

// TestSpareEndsWithItsKeeper checks that nothing stays when gloved is killed:
// all that its end does is close the link.
func TestSpareEndsWithItsKeeper(t *testing.T) {
	_, b := ready(t)
	b.link.Close()
	select {
	case <-b.gone:
	case <-time.After(20 * time.Second):
		t.Error("the spare outlives its keeper")
	}
}

func TestClosedSparesStayEmpty(t *testing.T) {
	s, b := ready(t)
	s.Close()
	if !b.isGone() {
		t.Error("the spare was left running")
	}
	s.refill()
	s.Refill(0)
	if s.spare != nil || s.timer != nil {
		t.Error("a spare was made after Close")
	}
}

// TestBadSpecIsRefused checks that a blank answers a Spec it cannot take.
func TestBadSpecIsRefused(t *testing.T) {
	s, b := ready(t)
	_, err := s.Spawn(t.Context(), Spec{SessionID: "../x"})
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeProtocol {
		t.Errorf("error = %v, want %s", err, CodeProtocol)
	}
	if !b.isGone() {
		t.Error("the monitor was left running")
	}
}
