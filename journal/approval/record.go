package approval

import (
	"fmt"
	"regexp"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/strictjson"
	"gloved.dev/journal"
)

// A Draft is a record to be written; the log adds alg, hash, prev, seq and ts.
// Payload is any value that encodes to a JSON object, or nil.
type Draft struct {
	Event     Event
	Actor     string
	Task      string
	ActionKey string
	Channel   string
	Payload   any
}

// body is the stored form of a draft: absent members are absent, never null.
type body struct {
	Event     Event          `json:"event"`
	Actor     string         `json:"actor"`
	Task      string         `json:"task,omitzero"`
	ActionKey string         `json:"action_key,omitzero"`
	Channel   string         `json:"channel,omitzero"`
	Payload   jsontext.Value `json:"payload,omitzero"`
}

// A Record is one proven record. Its slices are its own.
type Record struct {
	Seq       uint64
	TS        time.Time
	Event     Event
	Actor     string
	Task      string
	ActionKey string
	Channel   string
	Daemon    string         // which daemon of another program wrote it
	Payload   jsontext.Value // canonical JSON object, nil when absent
	Prev      string         // "" on the first record
	Hash      string
}

// Head is the head of a log that ends with r.
func (r Record) Head() journal.Head { return journal.Head{Seq: r.Seq, Hash: r.Hash} }

// Decode reads the payload into v and ignores members v does not have: the
// payload's content is open, and other programs add to it. An absent payload
// leaves v as it is.
func (r Record) Decode(v any) error {
	if r.Payload == nil {
		return nil
	}
	if err := json.Unmarshal(r.Payload, v); err != nil {
		return fmt.Errorf("payload of record %d (%s): %w", r.Seq, r.Event, err)
	}
	return nil
}

// wire is a whole record as it is read. The optional members are raw, to tell
// absent from null and empty.
type wire struct {
	Seq       jsontext.Value `json:"seq"`
	TS        jsontext.Value `json:"ts"`
	Event     Event          `json:"event"`
	Actor     string         `json:"actor"`
	Alg       jsontext.Value `json:"alg"`
	Hash      jsontext.Value `json:"hash"`
	Prev      jsontext.Value `json:"prev"`
	Task      jsontext.Value `json:"task"`
	ActionKey jsontext.Value `json:"action_key"`
	Channel   jsontext.Value `json:"channel"`
	Daemon    jsontext.Value `json:"daemon"`
	Payload   jsontext.Value `json:"payload"`
}

var daemonID = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// parse reads a proven record and judges it by the schema; why is "" when it
// is good. The journal has judged its own members before.
func parse(e journal.Entry) (r Record, why string) {
	var w wire
	if err := json.Unmarshal(e.Canonical(), &w, json.RejectUnknownMembers(true)); err != nil {
		return Record{}, "a member is unknown or of the wrong type: " + err.Error()
	}
	r = Record{Seq: e.Seq, TS: e.TS, Event: w.Event, Actor: w.Actor, Payload: w.Payload, Prev: e.Prev, Hash: e.Hash}
	for _, m := range []struct {
		name string
		raw  jsontext.Value
		into *string
	}{{"task", w.Task, &r.Task}, {"action_key", w.ActionKey, &r.ActionKey}, {"channel", w.Channel, &r.Channel}, {"daemon", w.Daemon, &r.Daemon}} {
		if m.raw == nil {
			continue
		}
		if m.raw.Kind() != '"' || json.Unmarshal(m.raw, m.into) != nil || *m.into == "" {
			return Record{}, m.name + " must be a non-empty string"
		}
	}
	if w.Payload != nil && w.Payload.Kind() != '{' {
		return Record{}, "payload must be an object"
	}
	return r, judge(&r)
}

// judge holds a record to the rules of its event.
func judge(r *Record) string {
	s, known := shapeOf(r.Event)
	kind, _, ok := ActorKind(r.Actor)
	switch {
	case !known:
		return fmt.Sprintf("%q is no event of the format", r.Event)
	case !ok:
		return "actor must be human:, agent: or system: and a name"
	case s.actor != "" && kind != s.actor:
		return fmt.Sprintf("%s is written by a %s: actor only", r.Event, s.actor)
	case s.task && r.Task == "":
		return fmt.Sprintf("%s needs a task", r.Event)
	case s.key && r.ActionKey == "":
		return fmt.Sprintf("%s needs an action_key", r.Event)
	case s.payload && r.Payload == nil:
		return fmt.Sprintf("%s needs a payload", r.Event)
	case r.Daemon != "" && !daemonID.MatchString(r.Daemon):
		return "daemon is ill-formed"
	}
	p, _ := decodeMembers(r.Payload)
	if why := p.money("est_cost_usd"); why != "" {
		return "payload." + why
	}
	if s.check != nil {
		if why := s.check(r, p); why != "" {
			return "payload: " + why
		}
	}
	return ""
}

// Schema judges a proven record by the rules of the event log, for use in
// journal.VerifyOptions and journal.SharedOptions.
func Schema(e journal.Entry) string {
	_, why := parse(e)
	return why
}

// seal checks a draft and puts its payload into canonical form.
func (d Draft) seal() (body, error) {
	b := body{Event: d.Event, Actor: d.Actor, Task: d.Task, ActionKey: d.ActionKey, Channel: d.Channel}
	r := Record{Event: d.Event, Actor: d.Actor, Task: d.Task, ActionKey: d.ActionKey, Channel: d.Channel}
	if d.Payload != nil {
		// Refuses duplicate names, lone surrogates and integers no other reader
		// would see the same way.
		canonical, err := strictjson.Canonical(d.Payload)
		if err != nil {
			return body{}, &Error{Code: CodeCanonicalization, Err: err}
		}
		if canonical[0] != '{' {
			return body{}, &Error{Code: CodeValidation, Detail: "payload must be an object"}
		}
		b.Payload, r.Payload = canonical, canonical
	}
	if why := judge(&r); why != "" {
		return body{}, &Error{Code: CodeValidation, Detail: why}
	}
	return b, nil
}
