package monitor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/require"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/sandbox"
)

// TestMain plays a monitor, and a session's processes, where the tests start them.
func TestMain(m *testing.M) {
	sandbox.Main()
	Main()
	os.Exit(m.Run())
}

// ready returns Spares with a spare in it, of which nothing may be left in the end.
func ready(t *testing.T) (*Spares, *blank) {
	t.Helper()
	require.Root(t)
	host, err := cgroup.Detect()
	must(t, err)
	s := &Spares{UIDRange: DefaultUIDRange, Root: t.TempDir(), Groups: "glove-test-" + NewKey()[:8] + "-"}
	must(t, os.Chmod(s.Root, 0o700))
	t.Cleanup(func() {
		s.Close()
		left, err := os.ReadDir(s.Root)
		must(t, err)
		names, err := host.Names(s.Groups)
		must(t, err)
		for _, name := range names {
			must(t, host.Sweep(context.Background(), name))
		}
		must(t, host.Close())
		if len(left)+len(names) > 0 && !t.Failed() {
			t.Errorf("%v and the groups %q are left", left, names)
		}
	})
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
	defer b.discard()
	if got := s.take(); got != nil {
		t.Error("the same spare was given twice")
	}
}

func TestSpareOfOtherMountsIsNotUsed(t *testing.T) {
	s, b := ready(t)
	b.host = append(b.host, "something was mounted since\n"...)
	if s.take() != nil {
		t.Error("a spare with other mounts was used")
	}
	s.old.Wait()
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
	// What it had made has names by which the next reconciliation finds it.
	host, err := cgroup.Detect()
	must(t, err)
	defer host.Close()
	must(t, host.Sweep(t.Context(), b.ground.Cgroup))
	must(t, os.RemoveAll(b.ground.Dir))
}

// TestSpareEndsWithItsKeeper checks that nothing stays when gloved is killed:
// all that its end does is close the link.
func TestSpareEndsWithItsKeeper(t *testing.T) {
	_, b := ready(t)
	b.conn.Close()
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

// TestGroundWithoutAUser: that all users were taken when the ground was laid says nothing
// of when the session comes.
func TestGroundWithoutAUser(t *testing.T) {
	require.Root(t)
	only := UIDRange{First: DefaultUIDRange.First + DefaultUIDRange.Count, Count: 1}
	held, err := claimUID(only)
	must(t, err)
	b := lay(ground{UIDRange: only, Dir: t.TempDir(), Cgroup: "glove-test-" + NewKey()[:8] + "-user"})
	defer func() {
		must(t, b.close(t.Context()))
		b.free()
	}()
	<-b.done
	if b.err == nil {
		t.Error("a user was claimed twice")
	}
	held.release()
	tenant, err := b.user()
	must(t, err)
	if tenant.HostUID != only.First {
		t.Errorf("the user is %d", tenant.HostUID)
	}
}

// TestSpareThatHasNoRoom: a disk that is full of others' files is not filled by spares.
func TestSpareThatHasNoRoom(t *testing.T) {
	s, _ := ready(t)
	s.take().discard()
	must(t, unix.Mount("tmpfs", s.Root, "tmpfs", 0, "size=32k,mode=700")) // half of what a session reserves
	t.Cleanup(func() { must(t, unix.Unmount(s.Root, 0)) })
	s.refill()
	if s.spare != nil {
		t.Error("a spare without room for an outcome")
	}
	if left, err := os.ReadDir(s.Root); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	if _, _, err := s.Spawn(t.Context(), Spec{SessionID: "x", UIDRange: s.UIDRange, Dir: filepath.Join(s.Root, "x")}); err == nil {
		t.Error("a monitor was spawned")
	}
	if left, err := os.ReadDir(s.Root); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// TestBadSpecIsRefused checks that a blank answers a Spec it cannot take.
func TestBadSpecIsRefused(t *testing.T) {
	s, b := ready(t)
	dir := filepath.Join(s.Root, "x")
	_, _, err := s.Spawn(t.Context(), Spec{SessionID: "../x", Dir: dir})
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeProtocol {
		t.Errorf("error = %v, want %s", err, CodeProtocol)
	}
	if err := os.Remove(dir); err != nil { // which is its keeper's
		t.Error(err)
	}
	if !b.isGone() {
		t.Error("the monitor was left running")
	}
}
