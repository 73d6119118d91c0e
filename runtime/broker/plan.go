package broker

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/safefile"
)

// An Image is a file's content by digest, and its permission bits.
type Image struct {
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"` // bytes
	Mode   uint32 `json:"mode"` // permission bits
}

// An Endpoint is one path with the state before and the state after; nil is absence.
type Endpoint struct {
	Path   string `json:"path"`
	Class  string `json:"class"`
	Before *Image `json:"before"`
	After  *Image `json:"after"`

	parent safefile.Identity  // the directory it is in
	object *safefile.Identity // the file that is there before
}

// A change is one operation with its endpoints (a move has two) and contents.
type change struct {
	op     Operation
	ends   []Endpoint
	after  []byte // new content; nil if the operation brings none
	before []byte // preimage; nil if there is none
	gid    uint32 // group of the preimage
}

// A Plan is a proposal that fits the workspace as it is.
type Plan struct {
	// Classes are the distinct classes of all endpoints, sorted. Each is one leg.
	Classes []string
	// Payload is the canonical text that a grant is bound to, PayloadHash its SHA-256.
	Payload     []byte
	PayloadHash string

	changes []change
}

// Endpoints returns every endpoint of the plan, in the order of the operations.
func (p *Plan) Endpoints() []Endpoint {
	var list []Endpoint
	for i := range p.changes {
		list = append(list, p.changes[i].ends...)
	}
	return list
}

// newFileMode is the mode of a created file before the umask.
const newFileMode = 0o644

// umask is the process's file mode creation mask, read once: reading it means setting it, and a
// file made meanwhile by another part of the process gets the narrowest mode.
var umask = sync.OnceValue(func() uint32 {
	m := syscall.Umask(0o077)
	syscall.Umask(m)
	return uint32(m)
})

// A planner checks a proposal against one reading of the workspace.
type planner struct {
	tree     *tree
	classify func(path string) Class
	images   int64 // bytes of all contents so far
}

// plan does the path work of a proposal. Its order matters: what the text alone shows is refused
// first, then what policy leaves to people, and only then is anything of the workspace looked at.
func (p *planner) plan(prop *Proposal, instance string) (*Plan, error) {
	out := &Plan{changes: make([]change, len(prop.Operations))}
	for i := range prop.Operations {
		out.changes[i].op = prop.Operations[i]
		if r := p.text(&out.changes[i]); r != nil {
			return nil, r
		}
	}
	if r := disjoint(prop.Operations); r != nil {
		return nil, r
	}
	for i := range out.changes {
		if r := p.classes(&out.changes[i], out); r != nil {
			return nil, r
		}
	}
	slices.Sort(out.Classes)
	out.Classes = slices.Compact(out.Classes)
	for i := range out.changes {
		if r := p.examine(&out.changes[i]); r != nil {
			return nil, r
		}
	}
	if err := out.seal(instance, p.tree); err != nil {
		return nil, refuse(CodePlanRefused, "payload", "the payload cannot be written").because(err)
	}
	return out, nil
}

// text judges what an operation says, without a look at the workspace.
func (p *planner) text(c *change) *Refusal {
	for _, path := range c.op.paths() {
		if r := checkPath(path); r != nil {
			return r
		}
	}
	if c.op.Kind == KindMove && c.op.From == c.op.To {
		r := refuse(CodeNoOpOperation, "", "the file would be moved to itself")
		r.Path = c.op.From
		return r
	}
	if c.op.Kind != KindCreate && c.op.Kind != KindReplace {
		return nil
	}
	var r *Refusal
	if c.after, r = c.op.after(); r != nil {
		return r
	}
	return p.count(c.op.Path, int64(len(c.after)))
}

func (p *planner) count(path string, size int64) *Refusal {
	if p.images += size; p.images > MaxImages {
		return planRefusal("images-too-large", path, "all contents, before and after, may have at most %d bytes", MaxImages)
	}
	return nil
}

// disjoint refuses endpoints that touch one another: the same twice, two spellings of one name, one
// inside another. What is left can be applied, and undone, in any order.
func disjoint(ops []Operation) *Refusal {
	seen := map[string]string{}
	for i := range ops {
		for _, path := range ops[i].paths() {
			f := fold(path)
			if other, ok := seen[f]; ok {
				if other == path {
					return planRefusal("duplicate-endpoint", path, "the path appears twice")
				}
				return planRefusal("alias", path, "two paths differ only by letter case")
			}
			seen[f] = path
		}
	}
	for f, path := range seen {
		for {
			i := strings.LastIndexByte(f, '/')
			if i < 0 {
				break
			}
			f = f[:i]
			if _, ok := seen[f]; ok {
				return planRefusal("nested-endpoint", path, "the path lies inside another one of the proposal")
			}
		}
	}
	return nil
}

// classes gives every endpoint its class, and refuses what only people may do.
func (p *planner) classes(c *change, out *Plan) *Refusal {
	for _, path := range c.op.paths() {
		class := p.classify(path)
		if class.HumanOnly {
			return planRefusal("class-human-only", path, "policy leaves class %s to people", class.Name)
		}
		c.ends = append(c.ends, Endpoint{Path: path, Class: class.Name})
		out.Classes = append(out.Classes, class.Name)
	}
	return nil
}

// examine compares an operation with the workspace.
func (p *planner) examine(c *change) *Refusal {
	for i := range c.ends {
		e := &c.ends[i]
		if wantsFile := c.op.Kind != KindCreate && i == 0; wantsFile {
			if r := p.source(c, e); r != nil {
				return r
			}
		} else if r := p.absent(e); r != nil {
			return r
		}
	}
	switch first := &c.ends[0]; c.op.Kind {
	case KindCreate:
		first.After = image(c.after, newFileMode&^umask())
	case KindReplace:
		first.After = image(c.after, first.Before.Mode)
		if first.After.SHA256 == first.Before.SHA256 {
			r := refuse(CodeNoOpOperation, "", "the file has that content already")
			r.Path = first.Path
			return r
		}
	case KindMove:
		moved := *first.Before
		c.ends[1].After = &moved
	}
	return nil
}

// source reads the file an operation starts from.
func (p *planner) source(c *change, e *Endpoint) *Refusal {
	d, name, there, r := p.locate(e)
	if r != nil {
		return r
	}
	if !there {
		return planRefusal("source-missing", e.Path, "the file does not exist")
	}
	id, err := d.stat(name)
	if err != nil {
		return planRefusal("unreadable", e.Path, "the file cannot be examined").because(err)
	}
	if r := judge(e.Path, id); r != nil {
		return r
	}
	if r := p.count(e.Path, int64(id.Size)); r != nil {
		return r
	}
	f, err := d.read(name, id)
	if errors.Is(err, errAttributes) {
		return planRefusal("extended-attributes", e.Path,
			"the file has extended attributes, an access list or capabilities, which a replacement would lose")
	}
	if err != nil {
		return planRefusal("unreadable", e.Path, "the file cannot be read").because(err)
	}
	if f.sum != c.op.ExpectedBefore {
		return planRefusal("preimage-mismatch", e.Path, "the file's content is not what the proposal expects")
	}
	e.Before = &Image{SHA256: f.sum, Size: int64(id.Size), Mode: id.Mode & 0o777}
	e.object, c.before, c.gid = &id, f.data, id.GID
	return nil
}

// absent makes sure that nothing is at an endpoint yet.
func (p *planner) absent(e *Endpoint) *Refusal {
	d, name, there, r := p.locate(e)
	if r != nil {
		return r
	}
	if there {
		return planRefusal("destination-exists", e.Path, "something exists there")
	}
	switch _, err := d.stat(name); {
	case err == nil: // not listed, and yet there: another spelling names it on this filesystem
		return planRefusal("alias", e.Path, "an entry with another spelling of the name exists")
	case !errors.Is(err, errNotThere):
		return planRefusal("unreadable", e.Path, "the place cannot be examined").because(err)
	}
	return nil
}

func (p *planner) locate(e *Endpoint) (d *dir, name string, there bool, r *Refusal) {
	parent, name := split(e.Path)
	if d, r = p.tree.dir(parent); r != nil {
		return nil, "", false, r
	}
	e.parent = d.id
	there, r = d.look(e.Path, name)
	return d, name, there, r
}

func image(data []byte, mode uint32) *Image {
	return &Image{SHA256: digest.SHA256Hex(data), Size: int64(len(data)), Mode: mode}
}

func effectiveUser() uint32 { return uint32(os.Geteuid()) }
