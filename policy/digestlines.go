package policy

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/strictjson"
)

// DigestLine is the digest of one launch.
type DigestLine struct {
	ID       string // template id, or "-" for a bare launch
	Digest   string // LaunchDigest
	Declared string // the document's adapter_command_digest; "" if it has none
}

// digestTemplate is a template whose digest may still be missing: calculating it is the purpose.
type digestTemplate struct {
	ID                  string    `json:"runtime_template_id"`
	RuntimeID           string    `json:"runtime_id,omitzero"`
	AdapterDigest       string    `json:"adapter_command_digest,omitzero"`
	Backend             Backend   `json:"sandbox_backend,omitzero"`
	AllowedAliases      []string  `json:"allowed_path_aliases,omitzero"`
	AllowedDestinations []string  `json:"allowed_projection_destinations,omitzero"`
	Adoption            *Adoption `json:"adoption,omitzero"`
	Launch              *Launch   `json:"launch,omitzero"`
}

// DigestLines calculates launch digests from a launch object, one runtime template, or a whole policy,
// told apart by their members. Launches are judged by CheckLaunch; nothing else of a template or policy
// is, because a policy under construction has wrong digests. Templates without launch have no line.
// Errors are *Error.
func DigestLines(raw []byte) ([]DigestLine, error) {
	if err := strictjson.Check(raw, strictjson.Limits{MaxBytes: MaxDocument}); err != nil {
		return nil, jsonFault(err)
	}
	var members map[string]jsontext.Value
	if err := json.Unmarshal(raw, &members); err != nil {
		return nil, fault(CodeJSON, "", "give a launch, a template or a policy", "it is no JSON object")
	}
	if list, ok := members["runtime_templates"]; ok {
		return policyDigests(list)
	}
	if _, ok := members["runtime_template_id"]; ok {
		line, err := templateDigest(raw, "")
		if err != nil {
			return nil, err
		}
		if line == nil {
			return nil, fault(CodeLaunch, "/launch", "add a launch", "the template has no launch, so no digest")
		}
		return []DigestLine{*line}, nil
	}
	var l Launch
	if err := strictjson.Decode(raw, &l, strictjson.Limits{MaxBytes: MaxDocument}); err != nil {
		return nil, jsonFault(err)
	}
	if err := CheckLaunch(l); err != nil {
		return nil, err
	}
	return []DigestLine{{ID: "-", Digest: LaunchDigest(l)}}, nil
}

func policyDigests(raw jsontext.Value) ([]DigestLine, error) {
	var templates []jsontext.Value
	if err := json.Unmarshal(raw, &templates); err != nil {
		return nil, fault(CodeJSON, "/runtime_templates", "make it a list of templates", "it is no list")
	}
	if len(templates) > MaxTemplates {
		return nil, fault(CodeCollection, "/runtime_templates", "shorten the list",
			"the list has %d entries; at most %d are allowed", len(templates), MaxTemplates)
	}
	lines := []DigestLine{}
	for i, t := range templates {
		line, err := templateDigest(t, fmt.Sprintf("/runtime_templates/%d", i))
		if err != nil {
			return nil, err
		}
		if line != nil {
			lines = append(lines, *line)
		}
	}
	return lines, nil
}

// templateDigest returns nil without error for a template that has no launch.
func templateDigest(raw []byte, at string) (*DigestLine, error) {
	var t digestTemplate
	if err := strictjson.Decode(raw, &t, strictjson.Limits{MaxBytes: MaxDocument}); err != nil {
		e := jsonFault(err)
		e.Pointer = at + e.Pointer
		return nil, e
	}
	if t.Launch == nil {
		return nil, nil
	}
	if err := CheckLaunch(*t.Launch); err != nil {
		err.Pointer = at + "/launch" + err.Pointer
		return nil, err
	}
	return &DigestLine{ID: t.ID, Digest: LaunchDigest(*t.Launch), Declared: t.AdapterDigest}, nil
}
