package broker

import (
	"fmt"
	"strconv"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/safefile"
	"gloved.dev/internal/strictjson"
)

// PayloadSchema is the schema_version of a Payload.
const PayloadSchema = "approval.codex.workspace-payload.v1"

// A Payload is what a person is asked to grant, to the byte: its RFC 8785 form is hashed, stored,
// shown, and compared again at each step up to the move. It binds the operations, the digest, size
// and mode of both images of every file, and which object each file and each directory is. It has
// no times, and nothing that a broker's own work changes, so that unrelated activity in the
// workspace does not void a grant. Numbers of the filesystem are decimal strings: an inode can
// exceed what a JSON number holds.
type Payload struct {
	SchemaVersion string             `json:"schema_version"`
	Instance      string             `json:"instance"`
	Workspace     PayloadRoot        `json:"workspace"`
	Operations    []PayloadOperation `json:"operations"`
}

// PayloadRoot is the workspace the payload is for.
type PayloadRoot struct {
	Path string `json:"path"`
	Dev  string `json:"dev"`
	Ino  string `json:"ino"`
}

// PayloadOperation is one operation with the class of each path it touches and the new content, if
// it brings one.
type PayloadOperation struct {
	Kind        string            `json:"kind"`
	AfterBase64 *string           `json:"after_base64,omitempty"`
	Endpoints   []PayloadEndpoint `json:"endpoints"`
}

// PayloadEndpoint is one path before and after. An absent file is a State without an image.
type PayloadEndpoint struct {
	Path   string        `json:"path"`
	Class  string        `json:"class"`
	Parent PayloadObject `json:"parent"`
	Before PayloadImage  `json:"before"`
	After  PayloadImage  `json:"after"`
}

// PayloadObject identifies a file or directory.
type PayloadObject struct {
	Dev string `json:"dev"`
	Ino string `json:"ino"`
}

// PayloadImage is a file's content and mode, or its absence (Type "absent"). Object and Nlink are
// those of an existing file and are left out for one that the transaction makes.
type PayloadImage struct {
	Type   string         `json:"type"` // "file" or "absent"
	SHA256 string         `json:"sha256,omitempty"`
	Size   *int64         `json:"size,omitempty"` // bytes
	Mode   string         `json:"mode,omitempty"` // permission bits, four octal digits
	Nlink  string         `json:"nlink,omitempty"`
	Object *PayloadObject `json:"object,omitempty"`
}

func object(id safefile.Identity) PayloadObject {
	return PayloadObject{Dev: strconv.FormatUint(id.Dev, 10), Ino: strconv.FormatUint(id.Ino, 10)}
}

func payloadImage(i *Image, id *safefile.Identity) PayloadImage {
	if i == nil {
		return PayloadImage{Type: "absent"}
	}
	size := i.Size
	p := PayloadImage{Type: "file", SHA256: i.SHA256, Size: &size, Mode: fmt.Sprintf("%04o", i.Mode)}
	if id != nil {
		o := object(*id)
		p.Object, p.Nlink = &o, strconv.FormatUint(id.Nlink, 10)
	}
	return p
}

// seal computes the payload of a plan and its hash.
func (p *Plan) seal(instance string, t *tree) error {
	root := object(t.id)
	doc := Payload{
		SchemaVersion: PayloadSchema, Instance: instance,
		Workspace: PayloadRoot{Path: t.path, Dev: root.Dev, Ino: root.Ino},
	}
	for i := range p.changes {
		c := &p.changes[i]
		op := PayloadOperation{Kind: c.op.Kind}
		if c.after != nil {
			op.AfterBase64 = &c.op.AfterBase64
		}
		for _, e := range c.ends {
			op.Endpoints = append(op.Endpoints, PayloadEndpoint{
				Path: e.Path, Class: e.Class, Parent: object(e.parent),
				Before: payloadImage(e.Before, e.object), After: payloadImage(e.After, nil),
			})
		}
		doc.Operations = append(doc.Operations, op)
	}
	raw, err := strictjson.Canonical(doc)
	if err != nil {
		return err
	}
	p.Payload, p.PayloadHash = raw, digest.SHA256Hex(raw)
	return nil
}
