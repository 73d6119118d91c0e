package workspace

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRefuseChannels(t *testing.T) {
	base := t.TempDir()
	deep := filepath.Join(base, "a", "b")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(deep, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/run", filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	check := func() error {
		p, err := OpenPinned(base)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		return RefuseChannels(t.Context(), p)
	}
	if err := check(); err != nil {
		t.Errorf("a tree of files, directories and links: %v", err)
	}
	if err := unix.Mkfifo(filepath.Join(base, "a", "p"), 0o600); err != nil {
		t.Fatal(err)
	}
	var e *Error
	if err := check(); !errors.As(err, &e) || e.Code != CodeChannel || e.Rel != "a/p" {
		t.Errorf("a tree with a FIFO: %v, want %s of a/p", err, CodeChannel)
	}
	if err := os.Remove(filepath.Join(base, "a", "p")); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(deep, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := check(); !errors.As(err, &e) || e.Code != CodeChannel || e.Rel != "a/b/s" {
		t.Errorf("a tree with a socket: %v, want %s of a/b/s", err, CodeChannel)
	}
}
