// Draws random numbers, then again for a line of its input: of each source a line `kind name number`.
package main

import (
	"bufio"
	secure "crypto/rand"
	"fmt"
	"hash/maphash"
	"math/rand"
	second "math/rand/v2"
	"os"
)

var seeded = rand.New(rand.NewSource(1))

func draw() [][2]any {
	bytes := make([]byte, 16)
	secure.Read(bytes)
	return [][2]any{
		{"kernel crypto/rand", fmt.Sprintf("%x", bytes)},
		{"memory math/rand", rand.Int63()},
		{"memory math/rand/v2", second.Uint64()},
		{"memory maphash.MakeSeed", maphash.String(maphash.MakeSeed(), "")},
		{"seed rand.NewSource(1)", seeded.Int63()},
	}
}

func main() {
	draw()
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
	for _, line := range draw() {
		fmt.Println(line[0], line[1])
	}
}
