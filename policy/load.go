package policy

import (
	"errors"
	"slices"

	"gloved.dev/internal/safefile"
	"gloved.dev/internal/strictjson"
)

// Policy is a checked session policy, frozen: it is read once and does not notice a replaced file.
// It is safe for concurrent use.
type Policy struct {
	doc       Document
	env       Env
	templates map[string]int // template id to index
	aliases   map[string]int // path alias to index
}

// Load reads the policy from a protected owner file (absolute path, ours, mode 0600, one link, no
// final symbolic link, at most MaxDocument bytes, unchanged while read) and checks it against this
// host. Errors are *Error.
func Load(path string) (*Policy, error) {
	data, _, err := safefile.ReadOwner(path, MaxDocument)
	if err != nil {
		e := &Error{Code: CodeFile, Detail: "the policy file cannot be trusted", Err: err,
			Fix: "keep the policy in a file of its own: owned by this user, mode 0600, one hard link, no symbolic link"}
		if s, ok := errors.AsType[*safefile.Error](err); ok && s.Code == safefile.CodeNotFound {
			e.Detail, e.Fix = "there is no policy file", "write one with mode 0600; glove policy generate makes its templates"
		}
		return nil, e
	}
	return Parse(data, Env{})
}

// Parse checks a policy given as bytes. The order in which faults are found is fixed: JSON, schema
// version, collection bounds, backends, access values, path aliases with their host objects,
// destinations and profiles, scalars and cross references, templates one by one, time to live. Errors
// are *Error.
func Parse(data []byte, env Env) (*Policy, error) {
	p := &Policy{env: env.orHost()}
	if err := strictjson.Decode(data, &p.doc, strictjson.Limits{MaxBytes: MaxDocument}); err != nil {
		return nil, jsonFault(err)
	}
	for _, check := range []func() *Error{
		p.checkVersion,
		p.checkCollections,
		p.checkBackends,
		p.checkAccessKinds,
		p.checkAliases,
		p.checkDestinations,
		p.checkProfiles,
		p.checkScalars,
		p.checkEgress,
		p.checkSecretMounts,
		p.checkTemplates,
		p.checkHeadroom,
	} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Revision is the number that plans must repeat.
func (p *Policy) Revision() uint64 { return p.doc.Revision }

// Document returns a copy of what was loaded.
func (p *Policy) Document() Document { return p.doc.clone() }

// RuntimeIDs returns the runtime ids of the templates on a backend that have a launch, sorted and
// unique: what a runtime for that backend could be asked to run.
func (p *Policy) RuntimeIDs(b Backend) []string {
	ids := []string{}
	for _, t := range p.doc.RuntimeTemplates {
		if t.Backend == b && t.Launch != nil {
			ids = append(ids, t.RuntimeID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Template returns a copy of the template with this id.
func (p *Policy) Template(id string) (Template, bool) {
	i, ok := p.templates[id]
	if !ok {
		return Template{}, false
	}
	return p.doc.RuntimeTemplates[i].clone(), true
}
