package broker

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"testing"

	"gloved.dev/internal/digest"
)

type op map[string]string

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
func sum(s string) string { return digest.SHA256Hex([]byte(s)) }

func create(path, content string) op {
	return op{"kind": "create", "path": path, "after_base64": b64(content)}
}

func replace(path, before, after string) op {
	return op{"kind": "replace", "path": path, "expected_before_sha256": sum(before), "after_base64": b64(after)}
}

func remove(path, before string) op {
	return op{"kind": "delete", "path": path, "expected_before_sha256": sum(before)}
}

func move(from, to, before string) op {
	return op{"kind": "move", "from": from, "to": to, "expected_before_sha256": sum(before)}
}

// proposal is the text of a proposal under the test policy.
func proposal(t testing.TB, ops ...op) []byte {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"operations": ops, "expected_policy_sha256": testPolicy})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// apply applies and returns the refusal, or nil.
func (s *site) apply(ops ...op) *Refusal {
	s.t.Helper()
	_, err := s.b.Apply(s.t.Context(), proposal(s.t, ops...))
	return s.refusal(err)
}

func (s *site) refusal(err error) *Refusal {
	s.t.Helper()
	if err == nil {
		return nil
	}
	r, ok := errors.AsType[*Refusal](err)
	if !ok {
		s.t.Fatalf("%v is no refusal", err)
	}
	return r
}

// want fails unless r has the code and, if given, the detail.
func want(t testing.TB, r *Refusal, code, detail string) {
	t.Helper()
	if r == nil {
		t.Fatalf("applied; want %s (%s)", code, detail)
	}
	if r.Code != code || detail != "" && r.Detail != detail {
		t.Fatalf("refused with %v; want %s (%s)", r, code, detail)
	}
}

func applied(t testing.TB, r *Refusal) {
	t.Helper()
	if r != nil {
		t.Fatalf("refused: %v", r)
	}
}
