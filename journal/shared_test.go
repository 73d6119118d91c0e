package journal

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/clock"
)

func sharedLog(t *testing.T) *Shared {
	t.Helper()
	s := OpenShared(filepath.Join(t.TempDir(), "a", "log.jsonl"), SharedOptions{
		Clock: clock.NewFake(time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)), Wait: 50 * time.Millisecond,
	})
	for _, name := range []string{"a", "b"} {
		if _, err := s.Append(context.Background(), nil, map[string]string{"event": name}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// A failed write or sync is undone: the file is byte for byte as before, the lock is free, and the
// next record takes the number that the failed one would have had.
func TestSharedUndoesFailures(t *testing.T) {
	broken := errors.New("broken disk")
	for name, harm := range map[string]func(*Shared){
		"no byte": func(s *Shared) { s.write = func(*os.File, []byte) (int, error) { return 0, broken } },
		"half": func(s *Shared) {
			s.write = func(f *os.File, p []byte) (int, error) { n, _ := f.Write(p[:len(p)/2]); return n, broken }
		},
		"short": func(s *Shared) { s.write = func(f *os.File, p []byte) (int, error) { return f.Write(p[:3]) } },
		"sync":  func(s *Shared) { s.sync = func(*os.File) error { return broken } },
		"whole, err": func(s *Shared) {
			s.write = func(f *os.File, p []byte) (int, error) { _, _ = f.Write(p); return 0, broken }
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := sharedLog(t)
			before, _ := os.ReadFile(s.Path())
			write, sync := s.write, s.sync
			harm(s)
			_, err := s.Append(context.Background(), nil, map[string]string{"event": "c"})
			var e *Error
			if !errors.As(err, &e) || e.Code != CodeIO || !strings.Contains(e.Detail, "cut back") {
				t.Fatalf("the failure is %v", err)
			}
			if after, _ := os.ReadFile(s.Path()); !bytes.Equal(before, after) {
				t.Fatalf("left behind: %q", after[len(before):])
			}
			s.write, s.sync = write, sync
			got, err := s.Append(context.Background(), nil, map[string]string{"event": "c"})
			if err != nil || got.Seq != 3 {
				t.Fatalf("afterwards: %d, %v", got.Seq, err)
			}
			if v, err := VerifyFile(s.Path(), VerifyOptions{}); v.Status != StatusClean || v.Records != 3 {
				t.Fatalf("%+v %v", v, err)
			}
		})
	}
}

// What somebody else wrote meanwhile, without the lock, is not cut off.
func TestSharedKeepsForeignBytes(t *testing.T) {
	s := sharedLog(t)
	foreign := strings.Repeat("x", 400) + "\n"
	s.write = func(f *os.File, p []byte) (int, error) {
		_, _ = f.WriteString(foreign)
		_, _ = f.Write(p[:5])
		return 5, errors.New("broken disk")
	}
	_, err := s.Append(context.Background(), nil, map[string]string{"event": "c"})
	if err == nil || !strings.Contains(err.Error(), "could not be cut back") {
		t.Errorf("%v", err)
	}
	if raw, _ := os.ReadFile(s.Path()); !bytes.Contains(raw, []byte(foreign)) {
		t.Error("foreign bytes were cut off")
	}
}

func TestSharedRefusesSchemaAndSize(t *testing.T) {
	s := sharedLog(t)
	before, _ := os.ReadFile(s.Path())
	picky := OpenShared(s.Path(), SharedOptions{Schema: func(e Entry) string {
		if bytes.Contains(e.Canonical(), []byte(`"event":"c"`)) {
			return "no c"
		}
		return ""
	}})
	full := OpenShared(s.Path(), SharedOptions{MaxBytes: int64(len(before)) + 10})
	for _, test := range []struct {
		log  *Shared
		body any
		want string
	}{
		{picky, map[string]string{"event": "c"}, CodeRefused},
		{full, map[string]string{"event": "d"}, CodeCapacity},
		{s, []int{1}, CodeInvalidBody},
		{s, map[string]int{"seq": 1}, CodeInvalidBody},
		{s, map[string]string{"event": strings.Repeat("x", MaxRecord)}, CodeTooLarge},
	} {
		var e *Error
		if _, err := test.log.Append(context.Background(), nil, test.body); !errors.As(err, &e) || e.Code != test.want {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
	if after, _ := os.ReadFile(s.Path()); !bytes.Equal(before, after) {
		t.Error("a refused record changed the file")
	}
	if _, err := picky.Append(context.Background(), nil, map[string]string{"event": "e"}); err != nil {
		t.Error(err)
	}
}

// The lock file is the public one, empty, and gone after each append.
func TestSharedLockFile(t *testing.T) {
	s := sharedLog(t)
	name := s.Path() + ".lock"
	s.sync = func(f *os.File) error {
		st, err := os.Lstat(name)
		if err != nil || st.Size() != 0 || st.Mode() != 0o600 {
			t.Errorf("during the append: %v, %v", st, err)
		}
		return f.Sync()
	}
	if _, err := s.Append(context.Background(), nil, map[string]string{"event": "c"}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("afterwards: %v", err)
	}
}
