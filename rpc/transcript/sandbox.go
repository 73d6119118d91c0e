package transcript

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// TestAuditKey is the audit key of every sandbox: the bytes 00 to 1f, the key of the
// specification's vectors, so that key ids in transcripts are the same on every machine.
// It must never authenticate anything but a transcript.
const TestAuditKey = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

// maxPolicyBytes is the bound of a policy file in the specification.
const maxPolicyBytes = 1 << 20

// Sandbox is the private state directory one transcript runs in. Its variables are
//
//	STATE             the directory itself (0700)
//	AUDIT_KEY         a key file holding TestAuditKey
//	JOURNAL STORE     the receipt journal and the session store, not yet there
//	POLICY            the session policy, where the transcript has one beside it
//	WORKSPACE         an empty directory for the policy's path alias to name
//	MATERIALIZATIONS  an empty owner-only directory
//	BUNDLES           an empty owner-only directory
//	RUNTIME           an empty owner-only directory
//	NOW               Unix milliseconds when the sandbox was made
//
// The policy of x.transcript is x.policy.json in the same directory, else
// default.policy.json there; variables in it are expanded.
type Sandbox struct {
	Dir  string
	Vars Vars
}

// NewSandbox makes the state directory for file beneath parent ("" is the system's
// temporary directory). The caller removes it with Close.
func NewSandbox(file *File, parent string) (*Sandbox, error) {
	dir, err := os.MkdirTemp(parent, "glove-transcript-")
	if err != nil {
		return nil, err
	}
	// Links on the way (a /tmp that is one) would be refused in a policy path.
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	sandbox := &Sandbox{Dir: dir, Vars: Vars{
		"STATE":            dir,
		"AUDIT_KEY":        filepath.Join(dir, "audit.key"),
		"JOURNAL":          filepath.Join(dir, "receipts.jsonl"),
		"STORE":            filepath.Join(dir, "sessions.jsonl"),
		"POLICY":           filepath.Join(dir, "session-policy.json"),
		"WORKSPACE":        filepath.Join(dir, "workspace"),
		"MATERIALIZATIONS": filepath.Join(dir, "materializations"),
		"BUNDLES":          filepath.Join(dir, "bundles"),
		"RUNTIME":          filepath.Join(dir, "runtime"),
		"NOW":              strconv.FormatInt(time.Now().UnixMilli(), 10),
	}}
	if err := sandbox.fill(file); err != nil {
		return nil, errors.Join(err, sandbox.Close())
	}
	return sandbox, nil
}

func (s *Sandbox) fill(file *File) error {
	for _, name := range []string{"WORKSPACE", "MATERIALIZATIONS", "BUNDLES", "RUNTIME"} {
		if err := os.Mkdir(s.Vars[name], 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(s.Vars["AUDIT_KEY"], []byte(TestAuditKey+"\n"), 0o600); err != nil {
		return err
	}
	policy, err := policyBeside(file)
	if err != nil || policy == nil {
		return err
	}
	text, err := s.Vars.Expand(string(policy), true)
	if err != nil {
		return fmt.Errorf("the policy beside %s: %w", file.Path, err)
	}
	return os.WriteFile(s.Vars["POLICY"], []byte(text), 0o600)
}

func policyBeside(file *File) ([]byte, error) {
	if file.Path == "" {
		return nil, nil
	}
	for _, path := range []string{
		strings.TrimSuffix(file.Path, ".transcript") + ".policy.json",
		filepath.Join(filepath.Dir(file.Path), "default.policy.json"),
	} {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() || info.Size() > maxPolicyBytes {
			return nil, fmt.Errorf("%s is not a regular file of at most %d bytes", path, maxPolicyBytes)
		}
		return os.ReadFile(path)
	}
	return nil, nil
}

// Close removes the state directory.
func (s *Sandbox) Close() error { return os.RemoveAll(s.Dir) }
