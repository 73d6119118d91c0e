package rpc

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"gloved.dev/rpc/wire"
)

// metaSchema is the part of the OpenRPC 1.3 meta-schema that a document of ours
// can offend: which members each object must and may have, and of which type.
const metaSchema = `{
 "type":"object","required":["openrpc","info","methods"],
 "properties":{
  "openrpc":{"type":"string","pattern":"^1\\.3\\.[0-9]+$"},
  "info":{"type":"object","required":["title","version"],"additionalProperties":false,
   "properties":{"title":{"type":"string"},"version":{"type":"string"}}},
  "methods":{"type":"array","items":{"$ref":"#/$defs/method"}}},
 "patternProperties":{"^x-":{}},
 "additionalProperties":false,
 "$defs":{
  "method":{"type":"object","required":["name","params"],"additionalProperties":false,"patternProperties":{"^x-":{}},
   "properties":{
    "name":{"type":"string","minLength":1},"summary":{"type":"string"},
    "paramStructure":{"enum":["by-position","by-name","either"]},
    "params":{"type":"array","items":{"$ref":"#/$defs/descriptor"}},
    "result":{"$ref":"#/$defs/descriptor"},
    "errors":{"type":"array","items":{"$ref":"#/$defs/error"}}}},
  "descriptor":{"type":"object","required":["name","schema"],"additionalProperties":false,
   "properties":{"name":{"type":"string","minLength":1},"summary":{"type":"string"},"required":{"type":"boolean"},
    "schema":{"type":["object","boolean"]}}},
  "error":{"type":"object","required":["code","message"],"additionalProperties":false,
   "properties":{"code":{"type":"integer"},"message":{"type":"string"},"data":{}}}}}`

// documented is a component with every shape the protocol's types have.
func documented() comp {
	return comp{methods: []Method{
		NewMethod(wire.MethodCreateSession, "Create a session.", MethodOptions{Mutating: true, Durable: true, Ordered: true,
			Errors: []Code{InvalidPlan, SessionConflict}}, handler[wire.CreateSessionParams, wire.Session]),
		NewMethod(wire.MethodAcknowledgeReceipts, "Acknowledge.", MethodOptions{Mutating: true}, handler[wire.AcknowledgeReceiptsParams, wire.AcknowledgeReceiptsResult]),
		NewMethod(wire.MethodPageReceipts, "Page.", MethodOptions{}, handler[wire.PageReceiptsParams, wire.PageReceiptsResult]),
		NewMethod(wire.MethodListSessions, "List.", MethodOptions{}, handler[wire.ListSessionsParams, wire.ListSessionsResult]),
		NewMethod(wire.MethodAttach, "Attach.", MethodOptions{}, handler[wire.AttachParams, wire.AttachResult]),
		NewMethod(wire.MethodAttachCredit, "Credit.", MethodOptions{Notification: true}, handler[wire.AttachCreditParams, wire.Empty]),
		NewMethod("owner_only", "Local.", MethodOptions{OwnerLocal: true}, handler[wire.Empty, wire.Empty]),
	}}
}

func handler[P, R any](_ context.Context, _ *Call, _ *P) (*R, error) { return nil, nil }

type notifying struct{ comp }

func (notifying) Notifications() []Notification {
	return []Notification{NewNotification[wire.SessionOutputParams](wire.NotifySessionOutput, "Output.")}
}

func describeJSON(t *testing.T, owner bool) (*Document, any) {
	t.Helper()
	reg, err := NewRegistry(notifying{documented()})
	if err != nil {
		t.Fatal(err)
	}
	d, err := reg.Describe(owner)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return d, v
}

func TestDocumentFitsMetaSchema(t *testing.T) {
	var s jsonschema.Schema
	if err := json.Unmarshal([]byte(metaSchema), &s); err != nil {
		t.Fatal(err)
	}
	meta, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, owner := range []bool{true, false} {
		_, v := describeJSON(t, owner)
		if err := meta.Validate(v); err != nil {
			t.Errorf("owner %v: %v", owner, err)
		}
	}
	// The check can fail: a method without params is none.
	if meta.Validate(map[string]any{"openrpc": "1.3.2", "info": map[string]any{"title": "", "version": ""},
		"methods": []any{map[string]any{"name": "x"}}}) == nil {
		t.Error("the meta-schema accepts a method without params")
	}
}

func TestEverySchemaIsASchema(t *testing.T) {
	d, _ := describeJSON(t, true)
	for _, m := range d.Methods {
		all := slices.Clone(m.Params)
		if m.Result != nil {
			all = append(all, *m.Result)
		}
		for _, p := range all {
			if _, err := p.Schema.CloneSchemas().Resolve(nil); err != nil {
				t.Errorf("%s, %s: %v", m.Name, p.Name, err)
			}
		}
	}
}

// TestDocumentShape states one method in full, so that a change of what is
// derived from the types is seen.
func TestDocumentShape(t *testing.T) {
	d, _ := describeJSON(t, true)
	var got []string
	for _, m := range d.Methods {
		var params []string
		for _, p := range m.Params {
			name := p.Name
			if p.Required {
				name += "!"
			}
			params = append(params, name)
		}
		got = append(got, m.Name+"("+strings.Join(params, " ")+")")
	}
	want := []string{
		"acknowledge_receipts(anchor! deadline_ms idempotency_key!)",
		"attach(session_id! cursor! max_bytes! wait_ms follow deadline_ms)",
		"attach_credit(session_id! cursor! deadline_ms)",
		"capabilities(deadline_ms)",
		"create_session(session_id! controller_plan_digest! plan! deadline_ms idempotency_key!)",
		"health(deadline_ms)",
		"initialize(protocol_versions! client! bootstrap_secret deadline_ms)",
		"list_sessions(after limit deadline_ms)",
		"owner_only(deadline_ms)",
		"page_receipts(anchor! limit! deadline_ms)",
		"rpc.discover(deadline_ms)",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("methods:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	create := d.Methods[4]
	raw, err := json.Marshal(create.Params[2].Schema)
	if err != nil || string(raw) != `{"type":"object","description":"a session plan of schema version 1 or 2"}` {
		t.Errorf("the plan's schema: %s, %v", raw, err)
	}
	codes := make([]string, 0, len(create.Errors))
	for _, e := range create.Errors {
		codes = append(codes, string(e.Data.Code))
	}
	const wantCodes = "invalid_request duplicate_id invalid_params internal_error not_initialized deadline_exceeded idempotency_conflict invalid_plan session_conflict response_too_large shutting_down"
	if strings.Join(codes, " ") != wantCodes {
		t.Errorf("errors %q, want %q", strings.Join(codes, " "), wantCodes)
	}
	if d.Methods[2].Result != nil {
		t.Error("a notification has a result")
	}
	if raw, err := json.Marshal(d.Methods[1].Result.Schema.Properties["data"]); err != nil || string(raw) != `{"type":"string","contentEncoding":"base64"}` {
		t.Errorf("bytes: %s, %v", raw, err)
	}
	if len(d.Notifications) != 1 || d.Notifications[0].Name != wire.NotifySessionOutput {
		t.Errorf("notifications: %+v", d.Notifications)
	}
}

// TestResultsFitTheirSchemas: what is described is what is sent.
func TestResultsFitTheirSchemas(t *testing.T) {
	p := dial(t, newServer(t, Options{}, documented()), ConnOptions{}).open()
	p.send(request(1, wire.MethodDiscover, `{}`))
	var d struct {
		Methods []struct {
			Name   string
			Result *struct{ Schema jsonschema.Schema }
		}
	}
	if err := json.Unmarshal(p.recv().Result, &d); err != nil {
		t.Fatal(err)
	}
	params := map[string]string{
		"capabilities": `{}`, "health": `{}`, "rpc.discover": `{}`, "list_sessions": `{}`, "owner_only": `{}`,
		"attach":               `{"session_id":"s","cursor":0,"max_bytes":1}`,
		"create_session":       `{"session_id":"s","controller_plan_digest":"d","plan":{},"idempotency_key":"k"}`,
		"page_receipts":        `{"anchor":{"key_id":"k","sequence":0,"head_hmac":"h"},"limit":1}`,
		"acknowledge_receipts": `{"anchor":{"key_id":"k","sequence":0,"head_hmac":"h"},"idempotency_key":"k"}`,
	}
	checked := 0
	for _, m := range d.Methods {
		if params[m.Name] == "" {
			continue
		}
		p.send(request(1, m.Name, params[m.Name]))
		a := p.recv()
		var v any
		if err := json.Unmarshal(a.Result, &v); err != nil || a.Error != nil {
			t.Errorf("%s: %v %+v", m.Name, err, a.Error)
			continue
		}
		r, err := m.Result.Schema.Resolve(nil)
		if err == nil {
			err = r.Validate(v)
		}
		if err != nil {
			t.Errorf("%s: %v\n%s", m.Name, err, a.Result)
		}
		checked++
	}
	if checked != len(params) {
		t.Errorf("%d methods checked, want %d", checked, len(params))
	}
}

func TestRegistry(t *testing.T) {
	m := func(name string, o MethodOptions) Method {
		return NewMethod(name, "", o, handler[echoParams, wire.Empty])
	}
	for name, c := range map[string]comp{
		"twice":          {methods: []Method{m("a", MethodOptions{}), m("a", MethodOptions{})}},
		"core's own":     {methods: []Method{m("health", MethodOptions{})}},
		"relay":          {methods: []Method{m("relay", MethodOptions{})}},
		"capital":        {methods: []Method{m("Health", MethodOptions{})}},
		"not made":       {methods: []Method{{Name: "x"}}},
		"unknown error":  {methods: []Method{m("x", MethodOptions{Errors: []Code{"nope"}})}},
		"reserved space": {methods: []Method{m("a b", MethodOptions{})}},
	} {
		if _, err := NewRegistry(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	reg, err := NewRegistry(comp{methods: []Method{m("b", MethodOptions{}), m("local", MethodOptions{OwnerLocal: true})},
		caps: func(c *wire.Capabilities) { c.ManagedRuntimeIDs = []string{"z", "a"}; c.Methods = []string{"forged"} }})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(reg.Capabilities(false).Methods, " "); got != "b capabilities health initialize rpc.discover" {
		t.Errorf("methods %q", got)
	}
	if got := strings.Join(reg.Capabilities(true).Methods, " "); got != "b capabilities health initialize local rpc.discover" {
		t.Errorf("the owner's methods %q", got)
	}
	if got := strings.Join(reg.Capabilities(true).ManagedRuntimeIDs, " "); got != "a z" {
		t.Errorf("runtime ids %q", got)
	}
}
