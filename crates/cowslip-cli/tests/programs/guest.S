/* A guest for QEMU, loaded by Multiboot: counts, writes each number to the next of 4,096 pages, and says every 65,536
   numbers on its console the number, and g if all pages have their last numbers, else B.
   cc -m32 -nostdlib -static -Wl,-Ttext=0x100000 guest.S -o guest */
    .text
    .globl _start
    .align 4
    .long 0x1BADB002, 0, -0x1BADB002
_start:
    mov $0x200000, %esp
    mov $0x400000, %ebp
    xor %ebx, %ebx
count:
    inc %ebx
    mov %ebx, %eax
    and $0xfff, %eax
    shl $12, %eax
    mov %ebx, (%eax,%ebp)
    test $0xffff, %ebx
    jnz count

    mov %ebx, %edi
    mov $8, %ecx
digit:
    rol $4, %edi
    mov %edi, %eax
    and $15, %eax
    add $'0', %al
    cmp $'9', %al
    jbe 1f
    add $('a' - '0' - 10), %al
1:  call say
    loop digit
    mov $' ', %al
    call say

    mov $'g', %al
    xor %ecx, %ecx
page:
    mov %ecx, %esi
    shl $12, %esi
    mov %ebx, %edi
    sub (%esi,%ebp), %edi
    cmp $0x1000, %edi
    jb 1f
    mov $'B', %al
1:  inc %ecx
    cmp $0x1000, %ecx
    jb page
    call say
    mov $'\n', %al
    call say
    jmp count

say:
    mov $0x3f8, %dx
    out %al, %dx
    ret
    .section .note.GNU-stack,"",@progbits
