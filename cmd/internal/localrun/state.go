package localrun

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/ident"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal/receipt"
)

// prefix begins the name of every private state directory.
const prefix = "glove-run-"

// A State is the private directory of one run: the audit key, the policy, the journals,
// gloved's log and the session's files.
type State struct {
	Dir  string
	lock *safefile.Lock
}

// bases are where state directories are made, in the order of preference.
func bases(runtimeDir string) []string { return []string{runtimeDir, os.TempDir(), "/var/tmp"} }

// youth is how long a directory is left alone that nobody has locked: whoever makes it
// may be about to.
const youth = 10 * time.Second

// Abandoned finds directories whose run was killed before it could clean up, at most a
// few, and takes them over. Their sessions may still be running.
func Abandoned(runtimeDir string) []*State {
	var found []*State
	seen := map[string]bool{}
	for _, base := range bases(runtimeDir) {
		if !ident.AbsPath(base) || seen[base] {
			continue
		}
		seen[base] = true
		dirs, _ := filepath.Glob(filepath.Join(base, prefix+"*")) // the pattern is well-formed
		for _, dir := range dirs {
			info, err := os.Lstat(filepath.Join(dir, lockName))
			if err != nil || time.Since(info.ModTime()) < youth || len(found) == maxAbandoned {
				continue
			}
			d, _, err := safefile.OpenOwnerDir(dir)
			if err != nil {
				continue // somebody else's
			}
			_ = d.Close() // read-only
			if lock, err := safefile.LockFile(filepath.Join(dir, lockName)); err == nil {
				found = append(found, &State{Dir: dir, lock: lock})
			}
		}
	}
	return found
}

const (
	lockName     = "run.lock"
	maxAbandoned = 4
)

// NewState makes the directory in the user's runtime directory or, without one, among
// the temporary files; never inside anything that the session is given.
func NewState(j *Job, runtimeDir string) (*State, error) {
	var causes []error
	for _, base := range bases(runtimeDir) {
		if !ident.AbsPath(base) {
			continue
		}
		real, err := filepath.EvalSymlinks(base)
		if err != nil {
			causes = append(causes, err)
			continue
		}
		if given := givenTo(j, real); given != "" {
			causes = append(causes, errors.New(real+" lies in "+given+", which the session is given"))
			continue
		}
		if err := undisturbed(real); err != nil {
			causes = append(causes, err)
			continue
		}
		dir, err := os.MkdirTemp(real, prefix)
		if err != nil {
			causes = append(causes, err)
			continue
		}
		s := &State{Dir: dir}
		if err := s.fill(j); err != nil {
			return nil, errors.Join(ui.Failf("no_private_state", "%w", err), s.Remove())
		}
		return s, nil
	}
	return nil, &ui.Error{Code: "no_private_state", Message: "there is no place for the private state: " + errors.Join(causes...).Error(),
		Next: "set XDG_RUNTIME_DIR or TMPDIR to a directory of yours outside what the session is given"}
}

// undisturbed fails if another user than root could rename or remove what we make in dir,
// and so have us meet something else there: sudo, for one, may keep its caller's
// XDG_RUNTIME_DIR.
func undisturbed(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return errors.New(dir + " belongs to another user")
	case st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0:
		return errors.New(dir + " can be changed by other users")
	}
	return nil
}

func givenTo(j *Job, dir string) string {
	for _, m := range j.Mounts {
		if ident.Within(dir, m.Host) {
			return m.Source
		}
	}
	return ""
}

func (s *State) fill(j *Job) (err error) {
	// Whoever holds this lock owns the directory; a later run sweeps those without.
	if s.lock, err = safefile.LockFile(s.path(lockName)); err != nil {
		return err
	}
	var key [32]byte
	_, _ = rand.Read(key[:]) // crypto/rand.Read does not fail: Go 1.24
	if err := safefile.WriteOwner(s.path("audit.key"), []byte(hex.EncodeToString(key[:])+"\n")); err != nil {
		return err
	}
	raw, err := j.Document.Canonical()
	if err != nil {
		return err
	}
	if err := safefile.WriteOwner(s.path("policy.json"), raw); err != nil {
		return err
	}
	root, _, err := safefile.MakeOwnerDir(s.path("root"))
	if err != nil {
		return err
	}
	return root.Close()
}

func (s *State) path(name string) string { return filepath.Join(s.Dir, name) }

// Arguments are gloved's.
func (s *State) Arguments() []string {
	return []string{"--stdio", "--audit-key", s.path("audit.key"), "--journal", s.path("receipts.jsonl"),
		"--session-policy", s.path("policy.json"), "--session-store", s.path("sessions.jsonl"),
		"--materialization-root", s.path("root")}
}

// Key loads the key that authenticates the run's receipt.
func (s *State) Key() (*receipt.Key, error) { return receipt.LoadKey(s.path("audit.key")) }

// logName is what gloved writes to standard error.
const logName = "gloved.log"

// OpenLog opens the log for gloved to write.
func (s *State) OpenLog() (*os.File, error) {
	return os.OpenFile(s.path(logName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

// maxTail is how much of the log is looked at.
const maxTail = 16 << 10

// Complaints are the last messages of gloved's log that say what went wrong, for people.
func (s *State) Complaints() []string {
	f, err := os.Open(s.path(logName))
	if err != nil {
		return nil
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-maxTail), io.SeekStart) // reading from the wrong place shows less
	}
	data, _ := io.ReadAll(io.LimitReader(f, maxTail)) // as far as it goes
	var out []string
	for line := range bytes.Lines(data) {
		var entry struct {
			Level string `json:"level"`
			Msg   string `json:"msg"`
			Error string `json:"error"`
			Cause string `json:"cause"`
		}
		if json.Unmarshal(line, &entry) != nil {
			out = append(out, strings.TrimSpace(string(line)))
			continue
		}
		switch {
		case entry.Level == "ERROR":
			out = append(out, strings.TrimSuffix(entry.Msg+": "+entry.Error, ": "))
		case entry.Cause != "" && (len(out) == 0 || !strings.HasSuffix(out[len(out)-1], entry.Cause)):
			out = append(out, entry.Cause)
		}
	}
	return out[max(0, len(out)-4):]
}

// Remove removes the directory and everything in it.
func (s *State) Remove() error {
	err := os.RemoveAll(s.Dir)
	return errors.Join(err, s.Release())
}

// Keep leaves the directory, by a name that no later run sweeps, and returns it.
func (s *State) Keep() (string, error) {
	kept := filepath.Join(filepath.Dir(s.Dir), "glove-kept-"+strings.TrimPrefix(filepath.Base(s.Dir), prefix))
	if err := os.Rename(s.Dir, kept); err != nil {
		return s.Dir, err
	}
	return kept, s.Release()
}

// Release lets go of the directory.
func (s *State) Release() error {
	if s.lock == nil {
		return nil
	}
	lock := s.lock
	s.lock = nil
	return lock.Unlock()
}
