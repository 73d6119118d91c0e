package journal_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	if diff := cmp.Diff(m.records, have); diff != "" {
		t.Fatal(diff)
	}
	m.j, m.kept = j, map[*journal.Reservation]int{}
}

func (m *model) free() int {
	n := modelRecords - len(m.records)
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
	if e.Seq != uint64(len(m.records))+1 || e.Prev != m.head().Hash {
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
				if s := m.j.Stats(); int(s.Records) != len(m.records) || int(s.ReservedRecords) != kept {
					t.Fatalf("%+v", s)
				}
			},
		})
		m.j.Close()
	})
}
