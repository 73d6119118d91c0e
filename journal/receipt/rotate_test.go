package receipt

import (
	"fmt"
	"os"
	"testing"

	"gloved.dev/journal"
)

// pages reads the chain after anchor as a controller does, verifying each
// envelope, and returns what it ends with.
func pages(t *testing.T, p *Producer, anchor Anchor) (Anchor, int) {
	t.Helper()
	n := 0
	for {
		page, err := p.Page(ctx, anchor, 4)
		if err != nil {
			t.Fatalf("after %d: %v", anchor.Sequence, err)
		}
		for _, v := range page.Envelopes {
			if anchor, err = p.key.Verify(anchor, v, Expectation{}); err != nil {
				t.Fatal(err)
			}
			n++
		}
		if !page.HasMore {
			if anchor != page.LocalAnchor {
				t.Errorf("the last page ends at %v and the head is %v", anchor, page.LocalAnchor)
			}
			return anchor, n
		}
	}
}

// TestRotate: the chain, its numbers, its anchors and its pages do not notice
// that the file was rotated.
func TestRotate(t *testing.T) {
	o := options(t)
	p := ready(t, o)
	anchors := []Anchor{Genesis(p.KeyID())}
	add := func(n int) {
		for range n {
			v := commit(t, p, fmt.Sprint("s", len(anchors)), nil)
			anchors = append(anchors, Anchor{p.KeyID(), v.Sequence, v.ThisHMAC})
		}
	}
	head := func() Anchor { return anchors[len(anchors)-1] }
	rotate := func(ro RotateOptions) Rotated {
		t.Helper()
		out, err := p.Rotate(ctx, ro)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	add(5)
	if out := rotate(RotateOptions{}); !out.Nothing {
		t.Errorf("nothing was acknowledged: %+v", out)
	}
	if err := p.Acknowledge(ctx, head()); err != nil {
		t.Fatal(err)
	}
	add(2) // not acknowledged
	res, err := p.Reserve("later", ctl, prof)
	if err != nil {
		t.Fatal(err)
	}
	live := func(id string) bool { return id == "s5" }
	if out := rotate(RotateOptions{Live: live, DryRun: true}); out.Receipts != 4 || out.Kept != 3 || out.Archive != nil {
		t.Errorf("dry run: %+v", out)
	}
	if out := rotate(RotateOptions{Live: live, AtMost: 10}); !out.Nothing {
		t.Errorf("too little to gain: %+v", out)
	}
	if out := rotate(RotateOptions{Live: live}); out.Receipts != 4 || out.Kept != 3 || out.KeptRecords != 5 || out.Archive.Records != 7 {
		t.Errorf("rotation: %+v", out)
	}
	if v, err := p.Lookup("s5", ctl, prof); err != nil || v == nil || v.Sequence != 5 {
		t.Errorf("a receipt that stays: %v %v", v, err)
	}
	v, err := res.CommitResource(ctx, r0(), nil)
	if err != nil || v.Sequence != 8 || v.PreviousHMAC != head().HeadHMAC {
		t.Fatalf("%+v %v", v, err)
	}
	anchors = append(anchors, Anchor{p.KeyID(), 8, v.ThisHMAC})
	for round := range 3 {
		for i, a := range anchors {
			if end, n := pages(t, p, a); end != head() || n != len(anchors)-1-i {
				t.Errorf("from %d: %d receipts to %v", i, n, end)
			}
			wrong := a
			wrong.HeadHMAC = prof
			_, err := p.Page(ctx, wrong, 1)
			wantCode(t, ReconciliationFailed, err)
		}
		_, err := p.Page(ctx, Anchor{p.KeyID(), head().Sequence + 1, prof}, 1)
		wantCode(t, ReconciliationFailed, err)
		p.Close()
		p = producer(t, o) // a restart: any anchor of the chain opens it
		if _, err := p.Page(ctx, anchors[round], 1); err != nil {
			t.Fatal(err)
		}
		if err := p.Acknowledge(ctx, anchors[1]); CodeOf(err) != ReconciliationFailed || p.Reconciled() {
			t.Errorf("an old anchor was acknowledged: %v", err)
		}
		if err := p.Acknowledge(ctx, head()); err != nil {
			t.Fatal(err)
		}
		if round == 1 {
			if out := rotate(RotateOptions{}); out.Kept != 0 || out.Archive.Number() != 2 {
				t.Errorf("everything: %+v", out)
			}
			add(3)
		}
	}
	for _, ref := range []struct{ seq uint64 }{{1}, {8}, {11}} {
		v, err := p.read(ref.seq)
		if err != nil {
			t.Fatal(err)
		}
		terminal, _ := v.TerminalReference()
		if err := p.Confirm(terminal); err != nil {
			t.Errorf("confirm %d: %v", ref.seq, err)
		}
	}
	if v, err := journal.VerifyFile(o.JournalPath, journal.VerifyOptions{}); err != nil || len(v.Archives) != 2 {
		t.Errorf("%+v %v", v, err)
	}
	// An archive that is kept elsewhere is missed only by who asks for it.
	if err := os.Rename(o.JournalPath+".000001", o.JournalPath+".away"); err != nil {
		t.Fatal(err)
	}
	p.Close()
	p = producer(t, o)
	if _, err := p.Page(ctx, head(), 1); err != nil || !p.Reconciled() {
		t.Errorf("at the head: %v", err)
	}
	_, err = p.Page(ctx, anchors[2], 1)
	wantCode(t, Archived, err)
	_, err = p.Page(ctx, anchors[0], 1)
	wantCode(t, Archived, err)
	if end, _ := pages(t, p, anchors[8]); end != head() {
		t.Errorf("from the base: %v", end)
	}
	commit(t, p, "last", nil)
}

// The base of a rotated journal is authenticated: without the key no other
// beginning can be given to the chain.
func TestForgedBase(t *testing.T) {
	o := options(t)
	p := ready(t, o)
	v := commit(t, p, "s1", nil)
	if err := p.Acknowledge(ctx, Anchor{p.KeyID(), 1, v.ThisHMAC}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Rotate(ctx, RotateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.Close()
	for name, change := range map[string]func(*storedBase){
		"none":     func(*storedBase) {},
		"sequence": func(b *storedBase) { b.Base.Sequence = 2 },
		"head":     func(b *storedBase) { b.Base.HeadHMAC = prof },
		"genesis":  func(b *storedBase) { b.Base = Genesis(b.Base.KeyID) },
		"hmac":     func(b *storedBase) { b.HMAC = prof },
	} {
		path := o.JournalPath + "-" + name
		j, err := journal.Open(path, journal.Options{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := j.Append(ctx, storedEnvelope{v}); err != nil {
			t.Fatal(err)
		}
		b := storedBase{Anchor{p.KeyID(), 1, v.ThisHMAC}, ""}
		b.HMAC = p.key.base(b.Base)
		change(&b)
		if _, err := j.Rotate(ctx, func(r *journal.Rotation) error { _, err := r.Put(b); return err }); err != nil {
			t.Fatal(err)
		}
		j.Close()
		o := o
		o.JournalPath = path
		_, err = producer(t, o).Page(ctx, Anchor{p.KeyID(), 1, v.ThisHMAC}, 1)
		if (err == nil) != (name == "none") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
