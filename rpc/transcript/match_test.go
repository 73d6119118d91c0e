package transcript

import (
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	hex := strings.Repeat("0a", 32)
	tests := []struct {
		name, want, got string
		pointers        []string // where differences are; none: it matches
	}{
		{"equal in another order", `{"a":1,"b":[true,null]}`, `{"b":[true,null],"a":1}`, nil},
		{"missing member", `{"a":1,"b":2}`, `{"a":1}`, []string{"/b"}},
		{"extra member", `{"a":1}`, `{"a":1,"b":2}`, []string{"/b"}},
		{"number written otherwise", `{"a":1}`, `{"a":1.0}`, []string{"/a"}},
		{"array length", `[1,2]`, `[1,2,3]`, []string{""}},
		{"array order", `[1,2]`, `[2,1]`, []string{"/0", "/1"}},
		{"null is not absent", `{"a":null}`, `{}`, []string{"/a"}},
		{"pointer escapes", `{"a/b~c":1}`, `{"a/b~c":2}`, []string{"/a~1b~0c"}},
		{"int", `"<int>"`, `-12`, nil},
		{"int is no fraction", `"<int>"`, `1.5`, []string{""}},
		{"int is no string", `"<int>"`, `"1"`, []string{""}},
		{"hex64", `"<hex64>"`, `"` + hex + `"`, nil},
		{"hex64 too short", `"<hex64>"`, `"` + hex[1:] + `"`, []string{""}},
		{"hex64 upper case", `"<hex64>"`, `"` + strings.ToUpper(hex) + `"`, []string{""}},
		{"base64", `"<base64>"`, `"aGk="`, nil},
		{"base64 without padding", `"<base64>"`, `"aGk"`, []string{""}},
		{"time in milliseconds", `"<time>"`, `1700000000000`, nil},
		{"time in seconds", `"<time>"`, `1700000000`, []string{""}},
		{"time as text", `"<time>"`, `"2026-08-20T19:17:15.812Z"`, nil},
		{"string", `"<string>"`, `"x"`, nil},
		{"string is no number", `"<string>"`, `1`, []string{""}},
		{"bool", `"<bool>"`, `false`, nil},
		{"any", `{"a":"<any>"}`, `{"a":{"b":[1]}}`, nil},
		{"any must be there", `{"a":"<any>"}`, `{}`, []string{"/a"}},
		{"unknown kind is a plain string", `"<uuid>"`, `"x"`, []string{""}},
		{"object for scalar", `{"a":1}`, `{"a":{"b":1}}`, []string{"/a"}},
		{"scalar for object", `{"a":{}}`, `{"a":1}`, []string{"/a"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			differences, err := Match([]byte(test.want), []byte(test.got), Vars{})
			if err != nil {
				t.Fatalf("Match(%s, %s): %v", test.want, test.got, err)
			}
			var pointers []string
			for _, difference := range differences {
				pointers = append(pointers, difference.Pointer)
			}
			if strings.Join(pointers, " ") != strings.Join(test.pointers, " ") || len(pointers) != len(test.pointers) {
				t.Errorf("Match(%s, %s) differs at %q (%v), want %q", test.want, test.got, pointers, differences, test.pointers)
			}
		})
	}
}

func TestMatchKeepsNamedValuesOnlyWhenAllMatches(t *testing.T) {
	vars := Vars{}
	if _, err := Match([]byte(`{"id":"<ID=string>","n":"<N=int>"}`), []byte(`{"id":"s-1","n":7}`), vars); err != nil {
		t.Fatal(err)
	}
	if vars["ID"] != "s-1" || vars["N"] != "7" {
		t.Errorf("kept %v, want ID=s-1 and N=7", vars)
	}
	other := Vars{}
	differences, err := Match([]byte(`{"id":"<ID=string>","n":1}`), []byte(`{"id":"s-1","n":7}`), other)
	if err != nil || len(differences) != 1 || len(other) != 0 {
		t.Errorf("after a mismatch: differences %v, kept %v, error %v; want one difference and nothing kept", differences, other, err)
	}
}

func TestMatchRefusesWhatIsNotOneValue(t *testing.T) {
	for _, got := range []string{``, `{`, `{} {}`, `{"a":1,"a":1}`, "\xff", `[1,]`, strings.Repeat("[", 1000)} {
		if _, err := Match([]byte(`"<any>"`), []byte(got), Vars{}); err == nil {
			t.Errorf("Match accepted %q from the server", clip(got, 40))
		}
	}
	if _, err := Match([]byte(`{`), []byte(`{}`), Vars{}); err == nil {
		t.Error("Match accepted an expectation that is not JSON")
	}
}

func TestExpand(t *testing.T) {
	vars := Vars{"NOW": "1000", "PATHLIKE": `a"b\c`}
	tests := []struct {
		text, want string
		quoted     bool
		fails      bool
	}{
		{"${NOW}", "1000", true, false},
		{"${NOW+5} ${NOW-1}", "1005 999", true, false},
		{"${PATHLIKE}", `a"b\c`, false, false},
		{"${PATHLIKE}", `a\"b\\c`, true, false},
		{"${MISSING}", "", true, true},
		{"${PATHLIKE+1}", "", true, true},
		{"${", "", true, true},
		{"$NOW", "$NOW", true, false},
	}
	for _, test := range tests {
		got, err := vars.Expand(test.text, test.quoted)
		if (err != nil) != test.fails || got != test.want {
			t.Errorf("Expand(%q, %v) = %q, %v; want %q, failure %v", test.text, test.quoted, got, err, test.want, test.fails)
		}
	}
}
