package rpc

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"

	"gloved.dev/internal/ident"
	"gloved.dev/rpc/wire"
)

// openRPCVersion is the version of the OpenRPC specification of Document.
const openRPCVersion = "1.3.2"

// A Document is an OpenRPC document: what rpc.discover returns.
type Document struct {
	OpenRPC string              `json:"openrpc"`
	Info    DocumentInfo        `json:"info"`
	Methods []MethodDescription `json:"methods"`
	// Notifications are what the server sends; OpenRPC has no place for them.
	Notifications []NotificationDescription `json:"x-notifications"`
}

// DocumentInfo is the info object of a Document.
type DocumentInfo struct {
	Title   string `json:"title"`
	Version string `json:"version"`
}

// MethodDescription is a method object. A method without a result is a
// notification.
type MethodDescription struct {
	Name           string              `json:"name"`
	Summary        string              `json:"summary"`
	ParamStructure string              `json:"paramStructure"`
	Params         []ContentDescriptor `json:"params"`
	Result         *ContentDescriptor  `json:"result,omitempty"`
	Errors         []ErrorDescription  `json:"errors"`
	Mutating       bool                `json:"x-mutating"`
	OwnerLocal     bool                `json:"x-owner-local"`
}

// NotificationDescription describes what the server sends unasked.
type NotificationDescription struct {
	Name    string              `json:"name"`
	Summary string              `json:"summary"`
	Params  []ContentDescriptor `json:"params"`
}

// ContentDescriptor is a content descriptor object.
type ContentDescriptor struct {
	Name     string             `json:"name"`
	Summary  string             `json:"summary,omitempty"`
	Required bool               `json:"required,omitzero"`
	Schema   *jsonschema.Schema `json:"schema"`
}

// ErrorDescription is an error object. Data holds the stable code.
type ErrorDescription struct {
	Code    int       `json:"code"`
	Message string    `json:"message"`
	Data    ErrorData `json:"data"`
}

// ErrorData is the part of an error's data that every error has.
type ErrorData struct {
	Code Code `json:"code"`
}

// anyErrors may be the answer to every request.
var anyErrors = []Code{InvalidRequest, DuplicateID, NotInitialized, InvalidParams, DeadlineExceeded,
	ResponseTooLarge, ShuttingDown, Internal}

// Describe returns the OpenRPC document of the methods a peer may call; owner
// says whether it is the owner.
func (r *Registry) Describe(owner bool) (*Document, error) {
	d := &Document{OpenRPC: openRPCVersion, Notifications: []NotificationDescription{},
		Info: DocumentInfo{Title: "gloved control protocol", Version: fmt.Sprintf("%d.0.0", wire.ProtocolVersion)}}
	names := make([]string, 0, len(r.methods))
	for name := range r.methods {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		m := r.lookup(name, owner)
		if m == nil {
			continue
		}
		md, err := describe(m)
		if err != nil {
			return nil, Wrap(Internal, "", err)
		}
		d.Methods = append(d.Methods, md)
	}
	for _, n := range r.notifications {
		params, err := descriptors(n.Params)
		if err != nil {
			return nil, Wrap(Internal, "", fmt.Errorf("notification %s: %w", n.Name, err))
		}
		d.Notifications = append(d.Notifications, NotificationDescription{Name: n.Name, Summary: n.Summary, Params: params})
	}
	return d, nil
}

func describe(m *Method) (MethodDescription, error) {
	d := MethodDescription{Name: m.Name, Summary: m.Summary, ParamStructure: "by-name",
		Mutating: m.Mutating, OwnerLocal: m.OwnerLocal, Errors: []ErrorDescription{}}
	params, err := descriptors(m.Params)
	if err != nil {
		return d, fmt.Errorf("parameters of %s: %w", m.Name, err)
	}
	d.Params = append(params, commonDescriptors(m)...)
	if m.Notification {
		return d, nil
	}
	s, err := schemaOf(m.Result)
	if err != nil {
		return d, fmt.Errorf("result of %s: %w", m.Name, err)
	}
	d.Result = &ContentDescriptor{Name: m.Name + "_result", Schema: s}
	for _, code := range errorsOf(m) {
		row := table[code]
		d.Errors = append(d.Errors, ErrorDescription{Code: row.number, Message: row.message, Data: ErrorData{Code: code}})
	}
	return d, nil
}

func errorsOf(m *Method) []Code {
	codes := slices.Concat(anyErrors, m.Errors)
	if m.Mutating {
		codes = append(codes, IdempotencyConflict)
	}
	if m.Mutating && !m.Durable {
		codes = append(codes, IdempotencyCapacity)
	}
	order := Codes()
	slices.SortFunc(codes, func(a, b Code) int { return slices.Index(order, a) - slices.Index(order, b) })
	return slices.Compact(codes)
}

// descriptors returns one content descriptor for each member of the struct t.
func descriptors(t reflect.Type) ([]ContentDescriptor, error) {
	s, err := schemaOf(t)
	if err != nil {
		return nil, err
	}
	out := []ContentDescriptor{}
	for _, name := range s.PropertyOrder {
		p := s.Properties[name]
		out = append(out, ContentDescriptor{Name: name, Summary: p.Description,
			Required: slices.Contains(s.Required, name), Schema: p})
	}
	return out, nil
}

func commonDescriptors(m *Method) []ContentDescriptor {
	out := []ContentDescriptor{{Name: paramDeadline, Summary: "Unix milliseconds after which the request must not take effect",
		Schema: &jsonschema.Schema{Type: "integer", Minimum: new(1.0), Maximum: new(float64(ident.MaxInt))}}}
	if m.Mutating {
		out = append(out, ContentDescriptor{Name: paramKey, Summary: "the same key with the same request returns the first answer", Required: true,
			Schema: &jsonschema.Schema{Type: "string", Pattern: "^[A-Za-z0-9_:.-]{1,128}$"}})
	}
	return out
}

// schemaTypes says what jsonschema cannot derive: how our encoder writes bytes
// and raw values. Everything else comes from the Go types.
var schemaTypes = map[reflect.Type]*jsonschema.Schema{
	reflect.TypeFor[[]byte]():            {Type: "string", ContentEncoding: "base64"},
	reflect.TypeFor[jsontext.Value]():    {Type: "object"},
	reflect.TypeFor[jsonschema.Schema](): {Types: []string{"object", "boolean"}},
}

func schemaOf(t reflect.Type) (*jsonschema.Schema, error) {
	s, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: schemaTypes})
	if err != nil {
		return nil, err
	}
	tighten(s)
	return s, nil
}

// tighten takes null out of optional pointers and slices: absent is how we say
// nothing, and the strict decoder refuses null.
func tighten(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if i := slices.Index(s.Types, "null"); i >= 0 {
		rest := slices.Delete(slices.Clone(s.Types), i, i+1)
		s.Types = nil
		if len(rest) == 1 {
			s.Type = rest[0]
		} else {
			s.Types = rest
		}
	}
	for _, p := range s.Properties {
		tighten(p)
	}
	tighten(s.Items)
	for _, c := range s.AnyOf {
		tighten(c)
	}
}
