package strictjson

import (
	"errors"
	"testing"

	"github.com/go-json-experiment/json"
)

// sample has members of every kind that complete looks at.
type sample struct {
	Name  string         `json:"name"`
	Count int            `json:"count"`
	Maybe *int           `json:"maybe,omitempty"`
	List  []sample       `json:"list"`
	Map   map[string]int `json:"map,omitzero"`
	Raw   []byte         `json:"raw,omitempty"`
	Must  *string        `json:"must"`
}

// slowDecode is Decode without the shortcut for documents that encode to
// themselves.
func slowDecode(data []byte, v any) error {
	if err := Check(data, Limits{}); err != nil {
		return err
	}
	if err := json.Unmarshal(data, v, json.RejectUnknownMembers(true)); err != nil {
		return semantic(err)
	}
	again, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var got, want any
	if err := errors.Join(json.Unmarshal(data, &got), json.Unmarshal(again, &want)); err != nil {
		return err
	}
	return compare("", got, want)
}

// FuzzShortcut checks that the shortcut changes no answer.
func FuzzShortcut(f *testing.F) {
	for _, s := range []string{
		`{"name":"a","count":1,"list":[],"must":null}`, `{"name":"a","count":1,"list":[],"must":"x"}`,
		`{"name":"a","count":1,"maybe":2,"list":[{"name":"","count":0,"list":[],"must":null}],"map":{"k":1},"raw":"AA==","must":"x"}`,
		`{"count":1,"name":"a","list":[],"must":null}`, `{"name":"a","count":1,"list":null,"must":null}`, `{"name":null,"count":1,"list":[],"must":null}`,
		` {"name":"a","count":1,"list":[],"must":null}`, `{"name":"a","list":[],"must":null}`, `null`, `[]`, `{"name":"\u0061","count":1,"list":[],"must":null}`,
		`{"name":"a","count":1e0,"list":[],"must":null}`, `{"name":"a","count":1,"list":[],"map":{},"must":null}`, `{"name":"a","count":1,"list":[],"map":{"k":null},"must":null}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var fast, slow sample
		a, b := Decode(data, &fast, Limits{}), slowDecode(data, &slow)
		// Which of several faults is told first is chance: members are compared in
		// the order of a map.
		if (a == nil) != (b == nil) {
			t.Errorf("%q: %v, without the shortcut %v", data, a, b)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	for name, text := range map[string]string{
		"own":     `{"name":"a","count":1,"list":[{"name":"","count":0,"list":[],"must":"m"}],"must":"x"}`,
		"foreign": `{"count":1,"name":"a","list":[{"name":"","count":0,"list":[],"must":"m"}],"must":"x"}`,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var s sample
				if err := Decode([]byte(text), &s, Limits{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
