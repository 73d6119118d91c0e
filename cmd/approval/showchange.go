package main

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/digest"
	"gloved.dev/runtime/broker"
)

// showChange shows a workspace change as a unified diff. The old text comes from
// the workspace and only counts when it is, by digest, the text that the payload
// binds; otherwise the person is told so and sees the whole new text.
func (a *app) showChange(change broker.Payload) {
	a.Outf("changes %s\n", reveal(change.Workspace.Path, a.OutColor))
	root, err := os.OpenRoot(change.Workspace.Path)
	if err != nil {
		a.Outf("%s\n", ui.Paint(a.OutColor, ui.Yellow, "the workspace cannot be read here: old texts are not shown"))
	} else {
		defer root.Close()
	}
	for _, op := range change.Operations {
		a.Outf("\n")
		a.showOperation(root, op)
	}
}

// An image is one side of a change as far as it can be shown.
type image struct {
	label string // of the diff header
	bytes []byte
	known bool // bytes are the ones the payload binds
	there bool
}

func (a *app) showOperation(root *os.Root, op broker.PayloadOperation) {
	title := ui.Paint(a.OutColor, ui.Bold, op.Kind)
	for i, e := range op.Endpoints {
		arrow := ""
		if i > 0 {
			arrow = " →"
		}
		title += arrow + " " + ui.Paint(a.OutColor, ui.Bold, reveal(e.Path, a.OutColor)) + ui.Paint(a.OutColor, ui.Dim, " ["+e.Class+"]")
	}
	a.Outf("%s\n", title)
	if op.Kind == broker.KindMove && len(op.Endpoints) == 2 {
		from, to := op.Endpoints[0], op.Endpoints[1]
		a.Outf("  %s\n", imageLine("moves", from.Before))
		if from.Before.SHA256 != to.After.SHA256 || from.Before.Mode != to.After.Mode {
			a.Outf("  %s\n", ui.Paint(a.OutColor, ui.Red, "and is changed: "+imageLine("becomes", to.After)))
		}
		return
	}
	for _, e := range op.Endpoints {
		a.showEndpoint(root, op, e)
	}
}

func (a *app) showEndpoint(root *os.Root, op broker.PayloadOperation, e broker.PayloadEndpoint) {
	before := a.oldImage(root, e)
	after := newImage(op, e)
	a.Outf("  %s\n  %s\n", imageLine("before", e.Before), imageLine("after", e.After))
	switch {
	case before.there && !before.known:
		a.Outf("  %s\n", ui.Paint(a.OutColor, ui.Yellow, "the file in the workspace is not (or no longer) the one this replaces; its text is not shown"))
	case after.there && !after.known:
		a.Outf("  %s\n", ui.Paint(a.OutColor, ui.Red, "the new content is not the one whose digest the payload names: do not grant it"))
		return
	}
	if binary(before.bytes) || binary(after.bytes) {
		a.Outf("  binary: compare the digests\n")
		return
	}
	a.showDiff(before, after)
}

// imageLine describes one side by mode, size and digest.
func imageLine(name string, i broker.PayloadImage) string {
	if i.Type != "file" {
		return fmt.Sprintf("%-7s %s", name, i.Type)
	}
	size := int64(0)
	if i.Size != nil {
		size = *i.Size
	}
	return fmt.Sprintf("%-7s mode %s, %d bytes, sha256 %s", name, i.Mode, size, i.SHA256)
}

func (a *app) oldImage(root *os.Root, e broker.PayloadEndpoint) image {
	out := image{label: "/dev/null"}
	if e.Before.Type != "file" {
		return out
	}
	out.label, out.there = "a/"+e.Path, true
	if root == nil {
		return out
	}
	data, err := readAt(root, e.Path)
	if err == nil && digest.SHA256Hex(data) == e.Before.SHA256 {
		out.bytes, out.known = data, true
	}
	return out
}

// readAt reads a file below root, which no link leads out of.
func readAt(root *os.Root, path string) ([]byte, error) {
	info, err := root.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	f, err := root.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, broker.MaxImage+1))
}

func newImage(op broker.PayloadOperation, e broker.PayloadEndpoint) image {
	out := image{label: "/dev/null"}
	if e.After.Type != "file" {
		return out
	}
	out.label, out.there = "b/"+e.Path, true
	if op.AfterBase64 == nil {
		return out
	}
	data, err := base64.StdEncoding.Strict().DecodeString(*op.AfterBase64)
	if err == nil && digest.SHA256Hex(data) == e.After.SHA256 {
		out.bytes, out.known = data, true
	}
	return out
}

func binary(data []byte) bool { return bytes.IndexByte(data, 0) >= 0 || !utf8.Valid(data) }

func (a *app) showDiff(before, after image) {
	a.Outf("%s\n%s\n", styled(a.OutColor, ui.Bold, "--- ", before.label), styled(a.OutColor, ui.Bold, "+++ ", after.label))
	old, oldWhole := splitLines(string(before.bytes))
	now, nowWhole := splitLines(string(after.bytes))
	// A missing final newline makes last lines differ, and is shown of a new file too.
	if !oldWhole {
		old[len(old)-1] += noNewline
	}
	if !nowWhole {
		now[len(now)-1] += noNewline
	}
	styles := map[byte]ui.Style{' ': ui.Plain, '-': ui.Red, '+': ui.Green}
	for _, h := range hunks(diffLines(old, now)) {
		a.Outf("%s\n", ui.Paint(a.OutColor, ui.Cyan, h.header()))
		for _, e := range h.edits {
			text, cut := trimNoNewline(e.text)
			a.Outf("%s\n", styled(a.OutColor, styles[e.op], string(e.op), text))
			if cut {
				a.Outf("%s\n", ui.Paint(a.OutColor, ui.Dim, `\ No newline at end of file`))
			}
		}
	}
}

// noNewline marks a last line without a newline. Its newline cannot occur in a
// line, so no text can imitate it.
const noNewline = "\n"

func trimNoNewline(text string) (string, bool) {
	if n := len(text) - len(noNewline); n >= 0 && text[n:] == noNewline {
		return text[:n], true
	}
	return text, false
}
