package strictjson

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

type inner struct {
	Name string `json:"name"`
}

type doc struct {
	Version uint64   `json:"version"`
	Items   []inner  `json:"items"`
	Note    string   `json:"note,omitempty"`
	Prev    *string  `json:"prev"`
	Opt     *inner   `json:"opt,omitempty"`
	List    []string `json:"list,omitempty"`
	Bytes   []byte   `json:"bytes,omitempty"`
}

func TestDecode(t *testing.T) {
	deep := strings.Repeat(`[`, 65) + strings.Repeat(`]`, 65)
	for _, c := range []struct {
		name, in, code, pointer string
	}{
		{"whole", `{"version":1,"items":[{"name":"a"}],"prev":null}`, "", ""},
		{"optional present", `{"version":1,"items":[],"prev":"x","note":"n","opt":{"name":"b"},"list":[]}`, "", ""},
		{"surrounding space", " {\"version\":1,\"items\":[],\"prev\":null}\r\n", "", ""},
		{"largest integer", `{"version":9007199254740991,"items":[],"prev":null}`, "", ""},
		{"integer too large", `{"version":9007199254740992,"items":[],"prev":null}`, CodeNumberRange, "/version"},
		{"exponent too large", `{"version":1e16,"items":[],"prev":null}`, CodeNumberRange, "/version"},
		{"infinite", `{"version":1e400,"items":[],"prev":null}`, CodeNumberRange, "/version"},
		{"fraction", `{"version":1.5,"items":[],"prev":null}`, CodeType, "/version"},
		{"negative", `{"version":-1,"items":[],"prev":null}`, CodeType, "/version"},
		{"wrong case", `{"Version":1,"items":[],"prev":null}`, CodeUnknownMember, "/Version"},
		{"unknown", `{"version":1,"items":[{"name":"a","x":1}],"prev":null}`, CodeUnknownMember, "/items/0/x"},
		{"duplicate", `{"version":1,"version":1,"items":[],"prev":null}`, CodeDuplicateName, "/version"},
		{"duplicate by escape", `{"version":1,"vers\u0069on":1,"items":[],"prev":null}`, CodeDuplicateName, "/version"},
		{"missing", `{"items":[],"prev":null}`, CodeMissing, "/version"},
		{"missing nullable", `{"version":1,"items":[]}`, CodeMissing, "/prev"},
		{"missing inside", `{"version":1,"items":[{}],"prev":null}`, CodeMissing, "/items/0/name"},
		{"null for number", `{"version":null,"items":[],"prev":null}`, CodeNull, "/version"},
		{"null for optional", `{"version":1,"items":[],"prev":null,"opt":null}`, CodeNull, "/opt"},
		{"null for array", `{"version":1,"items":null,"prev":null}`, CodeNull, "/items"},
		{"bytes", `{"version":1,"items":[],"prev":null,"bytes":"YQ=="}`, "", ""},
		{"bytes with stray bits", `{"version":1,"items":[],"prev":null,"bytes":"YR=="}`, CodeType, "/bytes"},
		{"bytes unpadded", `{"version":1,"items":[],"prev":null,"bytes":"YQ"}`, CodeType, "/bytes"},
		{"bytes of another alphabet", `{"version":1,"items":[],"prev":null,"bytes":"_-8="}`, CodeType, "/bytes"},
		{"string for number", `{"version":"1","items":[],"prev":null}`, CodeType, "/version"},
		{"NUL", `{"version":1,"items":[],"prev":"a\u0000"}`, CodeNUL, "/prev"},
		{"NUL in name", `{"version":1,"items":[],"prev":null,"\u0000":1}`, CodeNUL, ""},
		{"trailing value", `{"version":1,"items":[],"prev":null} {}`, CodeTrailing, ""},
		{"trailing NUL byte", "{\"version\":1,\"items\":[],\"prev\":null}\x00", CodeTrailing, ""},
		{"invalid UTF-8", "{\"version\":1,\"items\":[],\"prev\":\"\xff\"}", CodeInvalidUTF8, ""},
		{"lone surrogate", `{"version":1,"items":[],"prev":"\ud800"}`, CodeSyntax, ""},
		{"cut short", `{"version":1,`, CodeSyntax, ""},
		{"empty", ``, CodeSyntax, ""},
		{"deep", deep, CodeTooDeep, ""},
		{"comment", `{/**/"version":1,"items":[],"prev":null}`, CodeSyntax, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v doc
			err := Decode([]byte(c.in), &v, Limits{})
			if c.code == "" {
				if err != nil {
					t.Fatalf("Decode(%s) = %v, want success", c.in, err)
				}
				return
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("Decode(%s) = %v, want code %s", c.in, err, c.code)
			}
			if e.Code != c.code || c.pointer != "" && e.Pointer != c.pointer {
				t.Errorf("Decode(%s) = %v (code %s, pointer %q), want %s at %q", c.in, err, e.Code, e.Pointer, c.code, c.pointer)
			}
		})
	}
}

func TestBounds(t *testing.T) {
	var v any
	at := `"` + strings.Repeat("x", 98) + `"`
	if err := Decode([]byte(at), &v, Limits{MaxBytes: 100}); err != nil {
		t.Errorf("at the size bound: %v", err)
	}
	var e *Error
	if err := Decode([]byte(at+" "), &v, Limits{MaxBytes: 100}); !errors.As(err, &e) || e.Code != CodeTooLarge {
		t.Errorf("one byte past the bound: %v, want %s", err, CodeTooLarge)
	}
	nest := func(n int) []byte {
		return []byte(strings.Repeat("[", n) + strings.Repeat("]", n))
	}
	v = nil
	if err := Decode(nest(64), &v, Limits{}); err != nil {
		t.Errorf("at the depth bound: %v", err)
	}
	if err := Decode(bytes.Repeat([]byte("["), 1<<20), &v, Limits{}); !errors.As(err, &e) || e.Code != CodeTooDeep {
		t.Errorf("1 MiB of [: %v, want %s", err, CodeTooDeep)
	}
}

// The sorting and number rows are the examples of RFC 8785 sections 3.2.3 and
// 3.2.2.3.
func TestCanonical(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"b":1,"a":2}`, `{"a":2,"b":1}`},
		{"{\"\\u20ac\":1,\"\\r\":2,\"1\":3,\"\\ud83d\\ude00\":4,\"\\ufb33\":5}", "{\"\\r\":2,\"1\":3,\"\u20ac\":1,\"\U0001F600\":4,\"\ufb33\":5}"},
		{`[4.50,2e-3,0.000000000000000000000000001,-0]`, `[4.5,0.002,1e-27,0]`},
		{`"\u000f\n\u2028/"`, "\"\\u000f\\n\u2028/\""},
	} {
		got, err := CanonicalBytes([]byte(c.in))
		if err != nil || string(got) != c.want {
			t.Errorf("CanonicalBytes(%s) = %s, %v, want %s", c.in, got, err, c.want)
		}
		if !IsCanonical([]byte(c.want)) {
			t.Errorf("IsCanonical(%s) = false", c.want)
		}
	}
	if _, err := Canonical(map[string]uint64{"a": 1 << 53}); err == nil {
		t.Error("Canonical accepted 2^53, which readers may round")
	}
	if IsCanonical([]byte(`{"a": 1}`)) {
		t.Error("IsCanonical accepted a space")
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"version":1,"items":[{"name":"a"}],"prev":null}`, `[1,2.5,"é"]`, `{"a":{"b":[null,true]}}`, `-0`, `1e21`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var v any
		if Decode(data, &v, Limits{}) != nil {
			return
		}
		once, err := CanonicalBytes(data)
		if err != nil {
			t.Fatalf("decodes but has no canonical form: %v", err)
		}
		if !IsCanonical(once) {
			t.Fatalf("canonical form %q is not a fixed point", once)
		}
	})
}
