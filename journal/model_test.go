package journal_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"gloved.dev/journal"
)

// model is the journal as a list, and the capacity that is kept.
type model struct {
	d       *disk
	j       *journal.Journal
	records []string
	heads   []journal.Head
	kept    map[*journal.Reservation]int
	next    int
	rotated int // 1 once the file begins with an archive record, which counts
}

const modelRecords = 25

func (m *model) open(t *rapid.T) {
	var have []string
	j, err := journal.Open(memPath, journal.Options{FS: m.d, MaxRecords: modelRecords}, func(e journal.Entry) error {
		var b body
		if err := e.Decode(&b); err != nil {
			return err
		}
		have = append(have, b.Event)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m.records, have, cmpopts.EquateEmpty()); diff != "" {
		t.Fatal(diff)
	}
	m.j, m.kept = j, map[*journal.Reservation]int{}
}

func (m *model) free() int {
	n := modelRecords - len(m.records) - m.rotated
	for _, k := range m.kept {
		n -= k
	}
	return n
}

func (m *model) head() journal.Head {
	if len(m.heads) == 0 {
		return journal.Head{}
	}
	return m.heads[len(m.heads)-1]
}

// wrote compares an append's outcome with what it should be.
func (m *model) wrote(t *rapid.T, text string, e journal.Entry, err error, should bool, refusal error) {
	if !should {
		var want, got *journal.Error
		if !errors.As(refusal, &want) || !errors.As(err, &got) || want.Code != got.Code {
			t.Fatalf("want %v, got %v", refusal, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if e.Seq != uint64(len(m.records)+m.rotated)+1 || e.Prev != m.head().Hash {
		t.Fatalf("record %d after %d", e.Seq, len(m.records))
	}
	m.records = append(m.records, text)
	m.heads = append(m.heads, e.Head())
}

func (m *model) text() string {
	m.next++
	return fmt.Sprint("e", m.next)
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{d: newDisk()}
		m.open(t)
		ctx := context.Background()
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				text := m.text()
				e, err := m.j.Append(ctx, body{text, 0})
				m.wrote(t, text, e, err, m.free() > 0, journal.ErrCapacity)
			},
			"appendIf": func(t *rapid.T) {
				if len(m.heads) == 0 {
					return
				}
				head := rapid.SampledFrom(m.heads).Draw(t, "head")
				text := m.text()
				e, err := m.j.AppendIf(ctx, head, body{text, 0})
				if head != m.head() {
					m.wrote(t, text, e, err, false, journal.ErrHeadMoved)
					return
				}
				m.wrote(t, text, e, err, m.free() > 0, journal.ErrCapacity)
			},
			"reserve": func(t *rapid.T) {
				n := rapid.IntRange(1, 5).Draw(t, "n")
				r, err := m.j.Reserve(n, 1000)
				if (err == nil) != (n <= m.free()) {
					t.Fatalf("reserve %d of %d free: %v", n, m.free(), err)
				}
				if err == nil {
					m.kept[r] = n
				}
			},
			"use": func(t *rapid.T) {
				for r, n := range m.kept {
					text := m.text()
					e, err := r.Append(ctx, body{text, 0})
					should := n > 0 || m.free() > 0
					m.wrote(t, text, e, err, should, journal.ErrCapacity)
					if should && n > 0 {
						m.kept[r] = n - 1
					}
					return
				}
			},
			"release": func(t *rapid.T) {
				for r := range m.kept {
					r.Release()
					delete(m.kept, r)
					return
				}
			},
			"reopen": func(t *rapid.T) {
				if err := m.j.Close(); err != nil {
					t.Fatal(err)
				}
				m.open(t)
			},
			"rotate": func(t *rapid.T) {
				keep := rapid.IntRange(0, len(m.records)).Draw(t, "keep")
				before, n, carried := m.head(), 0, []journal.Head{}
				a, err := m.j.Rotate(ctx, func(r *journal.Rotation) error {
					return r.Walk(func(e journal.Entry) error {
						if n++; n <= len(m.records)-keep {
							return nil
						}
						moved, err := r.Put(jsontext.Value(e.Body()))
						carried = append(carried, moved.Head())
						return err
					})
				})
				if len(m.heads) == 0 {
					if !errors.Is(err, journal.ErrEmpty) {
						t.Fatal(err)
					}
					return
				}
				if m.rotated == 0 && m.free() == 0 && keep == len(m.records) { // no room for the archive record
					if !errors.Is(err, journal.ErrCapacity) && code(err) != journal.CodeCapacity {
						t.Fatal(err)
					}
					return
				}
				if err != nil || a.Head() != before {
					t.Fatalf("%+v, %v", a, err)
				}
				m.records, m.rotated = m.records[len(m.records)-keep:], 1
				if m.heads = carried; len(carried) == 0 {
					m.heads = append(m.heads, m.j.Head())
				}
			},
			"tear": func(t *rapid.T) {
				if err := m.j.Close(); err != nil {
					t.Fatal(err)
				}
				n := m.d.names[memPath]
				tail := rapid.SliceOfN(rapid.ByteRange(0x20, 0x7e), 1, 40).Draw(t, "tail")
				n.live = append(n.live, tail...)
				if _, err := journal.Open(memPath, journal.Options{FS: m.d}, nil); !errors.Is(err, journal.ErrTornTail) {
					t.Fatalf("torn: %v", err)
				}
				if _, err := journal.Repair(m.d, memPath, true); err != nil {
					t.Fatal(err)
				}
				m.open(t)
			},
			"": func(t *rapid.T) {
				if m.j.Head() != m.head() {
					t.Fatalf("head %v, want %v", m.j.Head(), m.head())
				}
				kept := 0
				for _, n := range m.kept {
					kept += n
				}
				if s := m.j.Stats(); int(s.Records) != len(m.records)+m.rotated || int(s.ReservedRecords) != kept {
					t.Fatalf("%+v", s)
				}
			},
		})
		m.j.Close()
	})
}
