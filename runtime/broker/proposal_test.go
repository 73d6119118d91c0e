package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestReq003OnlyTwoMembers(t *testing.T) {
	for _, key := range []string{"actor", "as", "root", "policy", "log", "class", "reversible", "token", "sandbox", "cwd", "path", "task", "summary", "est_cost_usd"} {
		s := newSite(t)
		var m map[string]any
		if err := json.Unmarshal(proposal(t, create("a", "x")), &m); err != nil {
			t.Fatal(err)
		}
		m[key] = "x"
		raw, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.b.Apply(t.Context(), raw)
		r := s.refusal(err)
		want(t, r, CodeInputInvalid, "")
		if !strings.Contains(r.Message, key) {
			t.Errorf("%q does not name %s", r.Message, key)
		}
		if n := len(s.gate.lines(t)); n != 0 {
			t.Fatalf("%d lines were logged", n)
		}
	}
}

// formCases are inputs whose form alone is refused.
func formCases() map[string]string {
	good := `"expected_policy_sha256":"` + testPolicy + `"`
	ops := func(op string) string { return `{"operations":[` + op + `],` + good + `}` }
	return map[string]string{
		"null": "null", "array": "[]", "string": `"x"`, "number": "7", "empty": "{}", "no text": "", "open": "{",
		"no operations": `{` + good + `}`, "no digest": `{"operations":[{"kind":"create","path":"a","after_base64":""}]}`,
		"short digest":           `{"operations":[],"expected_policy_sha256":"aa"}`,
		"upper digest":           `{"operations":[{"kind":"create","path":"a","after_base64":""}],"expected_policy_sha256":"` + strings.ToUpper(testPolicy) + `"}`,
		"two operations members": `{"operations":[{"kind":"create","path":"a","after_base64":""}],"operations":[{"kind":"create","path":"b","after_base64":""}],` + good + `}`,
		"trailing":               ops(`{"kind":"create","path":"a","after_base64":""}`) + "x",
		"other case":             strings.Replace(ops(`{"kind":"create","path":"a","after_base64":""}`), "operations", "Operations", 1),
		"operations null":        `{"operations":null,` + good + `}`,
		"no operation":           ops(""),
		"unknown kind":           ops(`{"kind":"chmod","path":"a"}`),
		"extra member":           ops(`{"kind":"delete","path":"a","expected_before_sha256":"` + testPolicy + `","mode":"0777"}`),
		"member of other kind":   ops(`{"kind":"create","path":"a","after_base64":"","expected_before_sha256":"` + testPolicy + `"}`),
		"null member":            ops(`{"kind":"create","path":"a","after_base64":null}`),
		"missing member":         ops(`{"kind":"replace","path":"a","after_base64":""}`),
		"wrong type":             ops(`{"kind":"create","path":7,"after_base64":""}`),
		"bad preimage digest":    ops(`{"kind":"delete","path":"a","expected_before_sha256":"x"}`),
		"move with path":         ops(`{"kind":"move","path":"a","to":"b","expected_before_sha256":"` + testPolicy + `"}`),
		"lone surrogate":         ops(`{"kind":"create","path":"\ud800","after_base64":""}`),
	}
}

func TestReq004And005And013Form(t *testing.T) {
	for name, text := range formCases() {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			_, err := s.b.Apply(t.Context(), []byte(text))
			want(t, s.refusal(err), CodeInputInvalid, "")
			if n := len(s.gate.lines(t)); n != 0 {
				t.Fatalf("%d lines were logged", n)
			}
		})
	}
}

func TestReq006CountOfOperations(t *testing.T) {
	for _, n := range []int{1, 64, 65} {
		s := newSite(t)
		var ops []op
		for i := range n {
			ops = append(ops, create(fmt.Sprintf("f%d", i), "x"))
		}
		r := s.apply(ops...)
		if n <= 64 {
			applied(t, r)
		} else {
			want(t, r, CodeInputInvalid, "")
		}
	}
}

func TestCodesAreTheClosedList(t *testing.T) {
	public := "tool-not-allowed input-invalid installation-invalid log-unavailable policy-unavailable policy-not-attested " +
		"attestation-drift reserved-path no-op-operation plan-refused replay register-refused request-refused approval-required " +
		"start-refused custody-contended custody-unavailable custody-insufficient workspace-drift stage-failed " +
		"commit-not-applied commit-unknown"
	if got := strings.Join(Codes(), " "); got != public {
		t.Fatalf("the public list has changed: %s", got)
	}
}

// FuzzProposal feeds the parser. Whatever it accepts is within the bounds, and every refusal has the
// one code.
func FuzzProposal(f *testing.F) {
	accepted := 0
	for _, seed := range formCases() {
		f.Add([]byte(seed))
	}
	good := proposal(f, create("a", "x"), replace("b", "y", "z"), remove("c", "w"), move("d", "e", "v"))
	if _, err := ParseProposal(good); err == nil {
		accepted++
	}
	if accepted != 1 {
		f.Fatal("the good seed is refused")
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ParseProposal(data)
		if err != nil {
			r, ok := errors.AsType[*Refusal](err)
			if !ok || r.Code != CodeInputInvalid {
				t.Fatalf("%v", err)
			}
			return
		}
		if len(p.Operations) == 0 || len(p.Operations) > MaxOperations || len(p.ExpectedPolicySHA256) != 64 {
			t.Fatalf("accepted %+v", p)
		}
		for i := range p.Operations {
			for _, path := range p.Operations[i].paths() {
				if checkPath(path) == nil && (strings.HasPrefix(path, "/") || strings.Contains("/"+path+"/", "/../")) {
					t.Fatalf("accepted the path %q", path)
				}
			}
		}
	})
}
